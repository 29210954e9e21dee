package provision

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// source is where the machine's own apt finds the Debian archive.
type source struct {
	uri      string
	signedBy string // empty: apt's default keyrings
}

const debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// baseSuite matches the names of a whole release; updates, security and
// backports may live at other addresses.
var baseSuite = regexp.MustCompile(`^(bookworm|trixie|forky|sid|stable|testing|unstable)$`)

// machineSource reads the address of the Debian archive from the machine's apt
// sources in either of their two formats.
func machineSource() (source, error) {
	var files []string
	for _, pattern := range []string{
		"/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources",
	} {
		found, _ := filepath.Glob(pattern) // the patterns are constant, so they parse
		files = append(files, found...)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		parse := parseOneLine
		if strings.HasSuffix(name, ".sources") {
			parse = parseDeb822
		}
		if s, ok := parse(string(raw)); ok {
			if s.signedBy == "" {
				if _, err := os.Stat(debianKeyring); err == nil {
					s.signedBy = debianKeyring
				}
			}
			return s, nil
		}
	}
	return source{}, errors.New("provision: no Debian archive in the machine's apt sources; " +
		"the guests are provisioned from the mirror the machine itself uses")
}

// parseOneLine reads `deb [options] URI SUITE COMPONENT...` lines.
func parseOneLine(text string) (source, bool) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		var s source
		if open := strings.Index(line, "["); open >= 0 {
			end := strings.Index(line, "]")
			if end < open {
				continue
			}
			for _, option := range strings.Fields(line[open+1 : end]) {
				if v, ok := strings.CutPrefix(option, "signed-by="); ok {
					s.signedBy = v
				}
			}
			line = line[:open] + line[end+1:]
		}
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != "deb" || !baseSuite.MatchString(f[2]) || !slices.Contains(f[3:], "main") {
			continue
		}
		s.uri = f[1]
		return s, true
	}
	return source{}, false
}

// parseDeb822 reads stanzas of `Field: value` lines.
func parseDeb822(text string) (source, bool) {
	fields := map[string]string{}
	check := func() (source, bool) {
		defer clear(fields)
		uris := strings.Fields(fields["uris"])
		if len(uris) == 0 || fields["enabled"] == "no" ||
			!slices.Contains(strings.Fields(fields["types"]), "deb") ||
			!slices.ContainsFunc(strings.Fields(fields["suites"]), baseSuite.MatchString) ||
			!slices.Contains(strings.Fields(fields["components"]), "main") {
			return source{}, false
		}
		signedBy := fields["signed-by"]
		if !strings.HasPrefix(signedBy, "/") {
			signedBy = "" // a fingerprint or a key in place: the default keyrings have Debian's
		}
		return source{uri: uris[0], signedBy: signedBy}, true
	}
	scanner := bufio.NewScanner(strings.NewReader(text))
	last := ""
	for scanner.Scan() {
		line := scanner.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			if s, ok := check(); ok {
				return s, true
			}
			last = ""
		case line[0] == ' ' || line[0] == '\t':
			fields[last] += " " + strings.TrimSpace(line)
		default:
			name, value, _ := strings.Cut(line, ":")
			last = strings.ToLower(strings.TrimSpace(name))
			fields[last] = strings.TrimSpace(value)
		}
	}
	return check()
}
