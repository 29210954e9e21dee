package archtest

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxLines is the most that a Go file may have: about what fits in a reader's
// head at once.
const maxLines = 500

func tree(t *testing.T) []file {
	t.Helper()
	dir, err := root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 50 {
		t.Fatalf("only %d Go files below %s: the test looks in the wrong place", len(files), dir)
	}
	return files
}

// Tests may import more than the code that they test: a ring's test has a
// driver. What a test must not do is hide an import from the graph, so the bans
// below apply to code alone, and the whereabouts of unsafe to both.
func TestImportGraph(t *testing.T) {
	for _, f := range tree(t) {
		if f.test {
			continue
		}
		r, known := rules[f.folder]
		if !known {
			t.Errorf("%s: the folder %q has no row in the import graph: give it one in rules.go and in ARCHITECTURE.md", f.path, f.folder)
			continue
		}
		for _, problem := range check(f, r) {
			t.Errorf("%s: %s", f.path, problem)
		}
	}
}

func check(f file, r rule) (problems []string) {
	for _, imp := range f.imports {
		if below(imp, module) {
			folder := strings.TrimPrefix(strings.TrimPrefix(imp, module), "/")
			if !slices.Contains(r.ours, "*") && !slices.Contains(r.ours, folder) {
				problems = append(problems, "imports "+folder+": "+r.why+" ("+f.folder+" may import of ours: "+allowed(r)+")")
			}
		}
		for ban, why := range r.not {
			if below(imp, ban) {
				problems = append(problems, "imports "+imp+": "+why)
			}
		}
		for what, o := range only {
			if below(imp, what) && !slices.ContainsFunc(o.folders, func(d string) bool { return below(f.folder, d) }) {
				problems = append(problems, "imports "+imp+", which only "+strings.Join(o.folders, ", ")+" may: "+o.why)
			}
		}
		for what, why := range nowhere {
			if imp == what || what == "golang.org/x/exp" && below(imp, what) {
				problems = append(problems, "imports "+imp+": "+why)
			}
		}
	}
	return problems
}

func allowed(r rule) string {
	if len(r.ours) == 0 {
		return "nothing"
	}
	return strings.Join(r.ours, ", ")
}

// The rules themselves must not go stale, nor allow a cycle.
func TestRulesAreConsistent(t *testing.T) {
	var walk func(folder string, path []string)
	walk = func(folder string, path []string) {
		if slices.Contains(path, folder) {
			t.Errorf("the rules allow a cycle: %s", strings.Join(append(path, folder), " -> "))
			return
		}
		for _, next := range rules[folder].ours {
			if next == "*" {
				continue
			}
			if _, known := rules[next]; !known {
				t.Errorf("%s may import %s, which has no row", folder, next)
				continue
			}
			walk(next, append(slices.Clone(path), folder))
		}
	}
	for folder, r := range rules {
		walk(folder, nil)
		if r.why == "" && !slices.Contains(r.ours, "*") {
			t.Errorf("%s is restricted without a reason", folder)
		}
	}
}

// A snapshot is a copy: with nothing else of netdev, no request can reach a
// device.
func TestMgmtSeesSnapshotsOnly(t *testing.T) {
	dir, err := root()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range tree(t) {
		if f.folder != "mgmt" || f.test {
			continue
		}
		names, err := selectors(filepath.Join(dir, f.path), module+"/netdev")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			seen++
			if !strings.HasSuffix(name, "Snapshot") {
				t.Errorf("%s uses netdev.%s: management sees netdev's snapshots and nothing else", f.path, name)
			}
		}
	}
	if seen == 0 {
		t.Error("mgmt uses no snapshot: the test looks in the wrong place")
	}
}

// Files with unsafe are the ones to read with the most care: their name says so,
// and one that has none does not cry wolf.
func TestUnsafeStaysInItsFiles(t *testing.T) {
	for _, f := range tree(t) {
		named := strings.HasSuffix(strings.TrimSuffix(f.path, "_test.go"), "_unsafe") ||
			strings.HasSuffix(f.path, "_unsafe.go")
		has := slices.Contains(f.imports, "unsafe")
		switch {
		case has && !named:
			t.Errorf("%s imports unsafe: it belongs in a file called *_unsafe.go", f.path)
		case named && !has:
			t.Errorf("%s does not import unsafe: it needs another name", f.path)
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	for _, f := range tree(t) {
		if f.lines > maxLines {
			t.Errorf("%s has %d lines: split it, %d are the limit", f.path, f.lines, maxLines)
		}
	}
}

func TestPackagesIntroduceThemselves(t *testing.T) {
	type pkg struct{ code, doc bool }
	pkgs := map[string]pkg{}
	for _, f := range tree(t) {
		if f.test {
			continue
		}
		p := pkgs[f.folder]
		p.code = true
		if filepath.Base(f.path) == "doc.go" {
			p.doc = true
			want := "Package " + f.pkg + " "
			if f.pkg == "main" {
				want = "Command "
				if base := filepath.Base(f.folder); base == "vhostnet" {
					want += base + " "
				}
			}
			if !strings.HasPrefix(f.doc, want) {
				t.Errorf("%s: the package comment begins with %q, want %q", f.path, firstLine(f.doc), want)
			}
		} else if f.doc != "" {
			t.Errorf("%s: a package comment beside doc.go", f.path)
		}
		pkgs[f.folder] = p
	}
	for folder, p := range pkgs {
		if p.code && !p.doc {
			t.Errorf("%s has no doc.go with the package comment", folder)
		}
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func TestFoldersHaveNames(t *testing.T) {
	for _, f := range tree(t) {
		for part := range strings.SplitSeq(f.folder, "/") {
			if slices.Contains(badNames, part) {
				t.Errorf("%s: %q does not say what is in it", f.path, part)
			}
		}
	}
}

// What the checks would say of code that breaks a rule: a test that cannot fail
// asserts nothing.
func TestChecksCatch(t *testing.T) {
	for name, c := range map[string]struct {
		path, src string
		want      string // "" for allowed
	}{
		"upward import":      {"vring/x.go", `import _ "` + module + `/netdev"`, "may import of ours: virtio, guestmem)"},
		"device knows tap":   {"netdev/x.go", `import _ "` + module + `/tap"`, "imports tap"},
		"descriptor":         {"coalesce/x.go", `import _ "os"`, "fake clock"},
		"below a ban":        {"ctrlq/x.go", `import _ "net/netip"`, "copied out"},
		"logrus in library":  {"netdev/x.go", `import _ "github.com/sirupsen/logrus/hooks/slog"`, "*slog.Logger"},
		"water outside tap":  {"cmd/vhostnet/x.go", `import _ "github.com/songgao/water"`, "only tap"},
		"cgo":                {"vring/x.go", `import "C"`, "static"},
		"same prefix":        {"cmd/vhostnet/x.go", `import _ "github.com/songgao/watercolour"`, ""},
		"everything for cmd": {"cmd/vhostnet/x.go", `import _ "` + module + `/tap"`, ""},
		"vsock in qemu-test": {"qemu-test/guest/x.go", `import _ "github.com/mdlayher/vsock"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := parse(c.path, []byte("package x\n"+c.src+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(check(f, rules[f.folder]), "\n")
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
