package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Titles of the sections.
var titles = map[string]string{
	"device":     "Feature bits of network devices",
	"transport":  "Feature bits of virtqueues and of the transport",
	"protocol":   "Protocol features of vhost-user",
	"control":    "Classes of control commands",
	"operations": "Operation",
}

// Marks in README.md around what is generated.
const (
	begin = "<!-- features:begin: go generate ./internal/featuretable -->\n"
	end   = "<!-- features:end -->\n"
)

// columns are the tables' first ones.
var columns = map[string]string{"control": "class", "operations": ""}

func number(r *row) string {
	var list []string
	for _, b := range r.bits {
		list = append(list, strconv.Itoa(b))
	}
	return strings.Join(list, ", ")
}

// value is what this device has, in a word or two.
func value(r *row) string {
	switch {
	case r.has != "":
		return r.has
	case r.state == yes:
		return "yes"
	case r.state == onRequest:
		return "option"
	case r.state == part:
		return "part"
	}
	return "no"
}

// code sets what is typed on a command line in its type.
func code(flags string) string {
	flag, rest, _ := strings.Cut(flags, ",")
	if rest != "" {
		rest = "," + rest
	}
	return "`" + flag + "`" + rest
}

// shown are the tests of a row, by folder, or the reason why there are none.
func shown(r *row) string {
	if r.state == no {
		return r.why
	}
	var folders []string
	names := map[string][]string{}
	for _, t := range r.tests {
		folder, name, _ := strings.Cut(t, " ")
		if !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
		names[folder] = append(names[folder], name)
	}
	var parts []string
	if r.option != "" {
		parts = append(parts, code(r.option))
	}
	for _, f := range folders {
		parts = append(parts, "`"+f+"` "+strings.Join(names[f], ", "))
	}
	return strings.Join(parts, "; ")
}

func count(s *section) (n int) {
	for _, r := range s.rows {
		if r.state != no {
			n++
		}
	}
	return n
}

func heading(s *section) string {
	if c, ok := columns[s.name]; ok {
		return c
	}
	return "bit"
}

// readme is what README.md has between its marks: this device and its tests.
func readme(list []section) string {
	var b strings.Builder
	for i := range list {
		s := &list[i]
		fmt.Fprintf(&b, "\n<details><summary>%s: %d of %d</summary>\n\n", titles[s.name], count(s), len(s.rows))
		fmt.Fprintf(&b, "| %s | feature | vhostnet | shown by, or why not |\n|---|---|---|---|\n", heading(s))
		for j := range s.rows {
			r := &s.rows[j]
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", number(r), r.name, value(r), shown(r))
		}
		b.WriteString("\n</details>\n")
	}
	b.WriteString("\n")
	return b.String()
}

const intro = `# Features

What vhostnet has beside other software back-ends. This file is written by ` + "`go generate ./internal/featuretable`" + `, which asks the
device for its offer; the tests that show each feature are in [README.md](README.md#every-feature).

Words: *option*, off by default; *fe*, the front-end has it and not the back-end; *part*, not all of it; *TAP*, through the TAP;
*n/a*, it has no meaning there. DPDK is lib/vhost with net_vhost, which Open vSwitch inherits; CH is cloud-hypervisor's
vhost_user_net, crosvm its "devices net", QEMU its own device in process on a TAP, vhost-net the kernel's, and Go is
vhost-user-blk-go, the only other vhost-user device in Go that was found. What they have is as of November 2026.
`

// matrix is FEATURES.md: this device beside its peers, and what stays out.
func matrix(list []section) string {
	var b strings.Builder
	b.WriteString(intro)
	for i := range list {
		s := &list[i]
		fmt.Fprintf(&b, "\n## %s\n\n| %s | feature | vhostnet | %s |\n", titles[s.name], heading(s), strings.Join(s.peers, " | "))
		b.WriteString(strings.Repeat("|---", 3+len(s.peers)) + "|\n")
		for j := range s.rows {
			r := &s.rows[j]
			fmt.Fprintf(&b, "| %s | %s | **%s** | %s |\n", number(r), r.name, value(r), strings.Join(r.cells, " | "))
		}
	}
	b.WriteString("\n## What stays out\n\n")
	for i := range list {
		s := &list[i]
		for j := range s.rows {
			if r := &s.rows[j]; r.state == no {
				fmt.Fprintf(&b, "- %s%s: %s.\n", r.name, where(s, r), r.why)
			}
		}
	}
	return b.String()
}

func where(s *section, r *row) string {
	switch {
	case len(r.bits) == 0:
		return ""
	case s.name == "protocol":
		return " (protocol feature " + number(r) + ")"
	case s.name == "control":
		return " (class " + number(r) + ")"
	case len(r.bits) > 1:
		return " (bits " + number(r) + ")"
	}
	return " (bit " + number(r) + ")"
}

// replace puts new text between the marks of a file.
func replace(file, text string) (string, error) {
	head, rest, ok := strings.Cut(file, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("no lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return head + begin + text + end + tail, nil
}
