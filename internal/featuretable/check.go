package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// countCommands is how many commands a row of a class names.
func countCommands(name string) int {
	_, list, _ := strings.Cut(name, ": ")
	if list == "PROMISC to NOBCAST" {
		return virtio.CtrlRXNoBcast + 1
	}
	return strings.Count(list, ",") + 1
}

// check returns what is wrong with tables: features without a row, rows on offer
// without a test that exists, others without a reason.
func check(list []section, exists map[string]bool) (problems []string) {
	report := func(s *section, name, format string, args ...any) {
		problems = append(problems, s.name+": "+name+": "+fmt.Sprintf(format, args...))
	}
	rows := map[string]map[int]bool{}
	for i := range list {
		s := &list[i]
		rows[s.name] = map[int]bool{}
		seen := map[string]bool{}
		for j := range s.rows {
			r := &s.rows[j]
			seen[r.name] = true
			for _, n := range r.bits {
				if rows[s.name][n] {
					report(s, r.name, "%d has two rows", n)
				}
				rows[s.name][n] = true
			}
			if _, known := about[s.name][r.name]; !known {
				report(s, r.name, "nothing is said of it in ours.go")
			}
			switch {
			case r.state == no && (r.why == "" || len(r.tests) > 0):
				report(s, r.name, "not on offer, with %d tests: it needs a reason and no test", len(r.tests))
			case r.state != no && len(r.tests) == 0:
				report(s, r.name, "on offer: name the tests that show it in ours.go")
			case r.state == onRequest && r.option == "":
				report(s, r.name, "on request: say how in ours.go")
			}
			for _, t := range r.tests {
				if !exists[t] {
					report(s, r.name, "there is no test %q", t)
				}
			}
		}
		for name := range about[s.name] {
			if !seen[name] {
				report(s, name, "ours.go has it, peers.txt has not")
			}
		}
	}
	for f := virtio.Named(); f != 0; f &= f - 1 {
		if n := bits.TrailingZeros64(uint64(f)); !rows["device"][n] && !rows["transport"][n] {
			problems = append(problems, fmt.Sprintf("feature bit %d, %v, has no row", n, f&-f))
		}
	}
	for n, name := range vhostuser.ProtocolFeatures(1<<64 - 1).Names() {
		if !strings.HasPrefix(name, "BIT_") && !rows["protocol"][n] {
			problems = append(problems, fmt.Sprintf("protocol feature %d, %s, has no row", n, name))
		}
	}
	return problems
}

// offered returns the problem that a bit on offer has no row, whether it has a name
// or not.
func offered(list []section, reg registry) (problems []string) {
	var features, protocol uint64
	for _, s := range list {
		for _, r := range s.rows {
			for _, n := range r.bits {
				switch {
				case n > 63:
				case s.name == "device" || s.name == "transport":
					features |= 1 << n
				case s.name == "protocol":
					protocol |= 1 << n
				}
			}
		}
	}
	if more := (reg.plain.features | reg.all.features) &^ virtio.Features(features); more != 0 {
		problems = append(problems, fmt.Sprintf("on offer without a row: %v", more))
	}
	if more := (reg.plain.protocol | reg.all.protocol) &^ vhostuser.ProtocolFeatures(protocol); more != 0 {
		problems = append(problems, fmt.Sprintf("on offer without a row: %v", more))
	}
	return problems
}

// module is how go.mod begins.
const module = "module github.com/vhostnet/vhostnet\n"

// root is the module's folder.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if b, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && bytes.HasPrefix(b, []byte(module)) {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("featuretable: no go.mod of this module above the working directory")
		}
		dir = up
	}
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

// testsOf finds the tests below a folder, as "FOLDER TestName".
func testsOf(root string) (map[string]bool, error) {
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && slices.Contains([]byte("._"), d.Name()[0]) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, m := range testFunc.FindAllSubmatch(b, -1) {
			found[filepath.ToSlash(folder)+" "+string(m[1])] = true
		}
		return nil
	})
	return found, err
}
