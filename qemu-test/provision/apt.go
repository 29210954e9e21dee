package provision

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// apt is a private apt state: own sources, lists, package cache and an empty
// list of installed packages, so that resolving a package yields its whole
// closure.
type apt struct {
	dir    string
	config string
}

// bookworm has the packages that this machine's release has.
func (o Options) bookworm(ctx context.Context, s source) (*apt, error) {
	return newApt(ctx, filepath.Join(o.Cache, "apt-bookworm"), s, []string{"bookworm"}, o)
}

// trixie has newer ones, with its backports.
func (o Options) trixie(ctx context.Context, s source) (*apt, error) {
	return newApt(ctx, filepath.Join(o.Cache, "apt-trixie"), s, []string{"trixie", "trixie-backports"}, o)
}

// newApt creates the state and fetches the lists of the suites.
func newApt(ctx context.Context, dir string, s source, suites []string, o Options) (*apt, error) {
	for _, program := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("provision: %w; guests are provisioned on Debian machines", err)
		}
	}
	a := &apt{dir: dir, config: filepath.Join(dir, "apt.conf")}
	for _, sub := range []string{"lists/partial", "cache/archives/partial", "none/partial", "conf"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("provision: apt state: %w", err)
		}
	}
	options := "arch=amd64"
	if s.signedBy != "" {
		options += " signed-by=" + s.signedBy
	}
	var list strings.Builder
	for _, suite := range suites {
		fmt.Fprintf(&list, "deb [%s] %s %s main\n", options, s.uri, suite)
	}
	// The machine's settings (proxies, credentials' helpers) are kept; ours are
	// read last. A hook of the machine must not run for the private state.
	parts := filepath.Join(dir, "conf")
	if err := linkParts("/etc/apt/apt.conf.d", parts); err != nil {
		return nil, err
	}
	q := func(sub string) string { return `"` + filepath.Join(dir, sub) + `"` }
	last := strings.Join([]string{
		`#clear APT::Update::Pre-Invoke;`, `#clear APT::Update::Post-Invoke;`, `#clear APT::Update::Post-Invoke-Success;`,
		`#clear DPkg::Pre-Invoke;`, `#clear DPkg::Post-Invoke;`, `#clear DPkg::Pre-Install-Pkgs;`,
		`Dir::State ` + q("") + `;`,
		`Dir::State::lists ` + q("lists") + `;`,
		`Dir::State::status ` + q("status") + `;`,
		`Dir::Cache ` + q("cache") + `;`,
		`Dir::Etc::sourcelist ` + q("sources.list") + `;`,
		`Dir::Etc::sourceparts "/dev/null";`,
		`Dir::Etc::preferences "/dev/null";`,
		`Dir::Etc::preferencesparts "/dev/null";`,
		`Acquire::Languages "none";`,
		`Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";`,
		`Acquire::Retries "3";`,
		`APT::Architecture "amd64";`,
		`APT::Architectures { "amd64"; };`,
		`APT::Install-Recommends "false";`,
		`APT::Install-Suggests "false";`,
		`APT::Default-Release "";`,
		// The cache folder need not be readable by apt's own user.
		`APT::Sandbox::User "";`,
	}, "\n") + "\n"
	for name, text := range map[string]string{
		"sources.list":            list.String(),
		"status":                  "",
		"apt.conf":                `Dir::Etc::parts "` + parts + `";` + "\n",
		"conf/zzz-vhostnet-guest": last,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, fmt.Errorf("provision: apt state: %w", err)
		}
	}
	o.Log("reading the package lists of %s", strings.Join(suites, ", "))
	if _, err := a.run(ctx, dir, "apt-get", "-q", "update", "-o", "APT::Update::Error-Mode=any"); err != nil {
		return nil, fmt.Errorf("provision: package lists of %s: %w", strings.Join(suites, ", "), err)
	}
	return a, nil
}

func linkParts(from, to string) error {
	old, err := os.ReadDir(to)
	if err != nil {
		return fmt.Errorf("provision: apt state: %w", err)
	}
	for _, e := range old {
		if err := os.Remove(filepath.Join(to, e.Name())); err != nil {
			return fmt.Errorf("provision: apt state: %w", err)
		}
	}
	entries, err := os.ReadDir(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("provision: apt state: %w", err)
	}
	for _, e := range entries {
		if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return fmt.Errorf("provision: apt state: %w", err)
		}
	}
	return nil
}

// run executes a program against the private state and returns what it printed.
func (a *apt) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "APT_CONFIG="+a.config, "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(errs.String())
		if text == "" {
			text = strings.TrimSpace(out.String())
		}
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, tail(text, 600))
	}
	return out.String(), nil
}

func tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

// version is the version of a package that a suite has.
func (a *apt) version(ctx context.Context, pkg, suite string) (string, error) {
	out, err := a.run(ctx, a.dir, "apt-cache", "madison", pkg)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		f := strings.Split(line, "|")
		if len(f) == 3 && strings.Contains(f[2], " "+suite+"/") {
			return strings.TrimSpace(f[1]), nil
		}
	}
	return "", fmt.Errorf("%s has no package %s", suite, pkg)
}

// closure downloads the packages with all their dependencies and returns the
// archive files. The suite is preferred where it has a package.
func (a *apt) closure(ctx context.Context, suite string, pkgs ...string) ([]string, error) {
	args := append([]string{"-qq", "-y", "-t", suite, "install"}, pkgs...)
	if _, err := a.run(ctx, a.dir, "apt-get", append(args, "--download-only")...); err != nil {
		return nil, err
	}
	// With an empty package cache apt names every file of the closure.
	uris, err := a.run(ctx, a.dir, "apt-get", append(args, "--print-uris", "-o", "Dir::Cache::archives="+filepath.Join(a.dir, "none"))...)
	if err != nil {
		return nil, err
	}
	var files []string
	for line := range strings.Lines(uris) {
		f := strings.Fields(line)
		if len(f) < 2 || !strings.HasSuffix(f[1], ".deb") {
			continue
		}
		file := filepath.Join(a.dir, "cache/archives", f[1])
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("download of %s: %w", strings.Join(pkgs, ", "), err)
		}
		files = append(files, file)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("download of %s: apt named no files", strings.Join(pkgs, ", "))
	}
	return files, nil
}

// single downloads packages without their dependencies.
func (a *apt) single(ctx context.Context, suite string, pkgs ...string) ([]string, error) {
	var files []string
	for _, pkg := range pkgs {
		dir := filepath.Join(a.dir, "single", pkg)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		version, err := a.version(ctx, pkg, suite)
		if err != nil {
			return nil, err
		}
		if _, err := a.run(ctx, dir, "apt-get", "-qq", "download", pkg+"="+version); err != nil {
			return nil, err
		}
		name := pkg + "_" + strings.ReplaceAll(version, ":", "%3a") + "_*.deb"
		found, err := filepath.Glob(filepath.Join(dir, name))
		if err != nil || len(found) != 1 {
			return nil, fmt.Errorf("download of %s left %d files named %s", pkg, len(found), name)
		}
		files = append(files, found[0])
	}
	return files, nil
}

// unpack extracts archives into dir, two at a time: the decompression is what
// takes the time.
func unpack(ctx context.Context, dir string, archives []string) error {
	work := make(chan string)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for file := range work {
				out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", file, dir).CombinedOutput()
				if err != nil {
					errs[i] = errors.Join(errs[i], fmt.Errorf("dpkg-deb -x %s: %w: %s", filepath.Base(file), err, tail(string(out), 300)))
				}
			}
		})
	}
	for _, file := range archives {
		work <- file
	}
	close(work)
	wg.Wait()
	return errors.Join(errs...)
}
