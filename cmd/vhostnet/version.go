package main

import (
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/vhostnet/vhostnet/mgmt"
)

// versionCmd prints the version.
type versionCmd struct {
	JSON bool `name:"json" help:"Print one JSON object, as GET /v1/version answers."`
}

// Run prints to standard output.
func (c *versionCmd) Run(env environment) error {
	v := version()
	if c.JSON {
		return json.NewEncoder(env.stdout).Encode(v)
	}
	_, err := fmt.Fprintln(env.stdout, versionLine(v))
	return err
}

func versionLine(v mgmt.VersionInfo) string {
	s := "vhostnet " + v.Version
	if v.Revision != "" {
		s += " " + v.Revision
		if v.Modified {
			s += "+modified"
		}
	}
	return s + " " + v.Go
}

// version is what the toolchain recorded in the binary.
func version() mgmt.VersionInfo {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return mgmt.VersionInfo{Version: "unknown"}
	}
	return fromBuildInfo(bi)
}

func fromBuildInfo(bi *debug.BuildInfo) mgmt.VersionInfo {
	v := mgmt.VersionInfo{Version: bi.Main.Version, Go: bi.GoVersion}
	if v.Version == "" || v.Version == "(devel)" {
		v.Version = "devel"
	}
	for _, s := range bi.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
