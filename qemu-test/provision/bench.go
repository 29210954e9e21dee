package provision

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
)

// benchRecipe is the version of what EnsureBench builds.
const benchRecipe = 1

// benchPackages are the programs that measurements need and tests do not.
var benchPackages = []string{"redis-server", "redis-tools", "nginx-light", "wrk"}

// benchPrograms is what of them a guest gets, by its place in the prefix.
var benchPrograms = []string{
	"usr/bin/redis-server", "usr/bin/redis-benchmark", "usr/sbin/nginx", "usr/bin/wrk",
}

// Bench says where the programs of measurements are.
type Bench struct {
	Recipe int `json:"recipe"`
	// Prefix is the folder that their packages were unpacked into.
	Prefix string `json:"prefix"`
	// Versions are Debian's, by package.
	Versions map[string]string `json:"versions"`
}

// EnsureBench is Ensure for measurements: with redis, nginx and wrk, which Tool
// then finds and BenchFiles brings into a guest. They are in a prefix of their
// own, so that neither the tests nor their guests have to carry them.
func EnsureBench(ctx context.Context, o Options) (*Assets, error) {
	a, err := Ensure(ctx, o)
	if err != nil {
		return nil, err
	}
	unlock, err := o.open()
	if err != nil {
		return nil, err
	}
	defer unlock()
	stamp := filepath.Join(o.Cache, "bench.json")
	if !o.Refresh {
		if a.Bench = loadBench(stamp); a.Bench != nil {
			return a, nil
		}
	}
	if a.Bench, err = fillBench(ctx, o); err != nil {
		return nil, fmt.Errorf("provision: programs of measurements: %w", err)
	}
	return a, save(stamp, a.Bench)
}

func fillBench(ctx context.Context, o Options) (*Bench, error) {
	source, err := machineSource()
	if err != nil {
		return nil, err
	}
	stable, err := o.bookworm(ctx, source)
	if err != nil {
		return nil, err
	}
	files, err := stable.closure(ctx, "bookworm", benchPackages...)
	if err != nil {
		return nil, err
	}
	b := &Bench{Recipe: benchRecipe, Prefix: filepath.Join(o.Cache, "bench"), Versions: map[string]string{}}
	for _, pkg := range benchPackages {
		if b.Versions[pkg], err = stable.version(ctx, pkg, "bookworm"); err != nil {
			return nil, err
		}
	}
	return b, replaceDir(b.Prefix, func(dir string) error { return unpack(ctx, dir, files) })
}

func loadBench(stamp string) *Bench {
	raw, err := os.ReadFile(stamp)
	if err != nil {
		return nil
	}
	var b Bench
	if json.Unmarshal(raw, &b) != nil || b.Recipe != benchRecipe {
		return nil
	}
	if _, err := os.Stat(b.Prefix); err != nil {
		return nil
	}
	return &b
}

// BenchFiles are the programs of measurements with their libraries, for the
// initramfs of a guest. They also have the accounts that nginx looks up.
func (a *Assets) BenchFiles() ([]File, error) {
	if a.Bench == nil {
		return nil, fmt.Errorf("provision: the programs of measurements are not there: EnsureBench brings them")
	}
	libs, err := libraryClosure(a.Bench.Prefix, benchPrograms...)
	if err != nil {
		return nil, fmt.Errorf("provision: %w", err)
	}
	files := []File{
		{Name: "etc/passwd", Content: "root:x:0:0:root:/root:/bin/sh\n", Mode: 0o644},
		{Name: "etc/group", Content: "root:x:0:\n", Mode: 0o644},
	}
	for _, p := range benchPrograms {
		files = append(files, File{Name: "bin/" + path.Base(p), From: filepath.Join(a.Bench.Prefix, p)})
	}
	for _, l := range libs {
		files = append(files, File{Name: libraryPlace(l), From: l})
	}
	return files, nil
}
