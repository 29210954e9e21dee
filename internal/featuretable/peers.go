package main

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

//go:embed peers.txt
var peersText string

// section is one table.
type section struct {
	name  string
	peers []string // the columns
	rows  []row
}

// row is one line of a table.
type row struct {
	// bits are feature bits, or the number of a class of commands; none in the
	// section operations.
	bits []int
	name string
	// cells are what each peer has.
	cells []string
	ours
	// state is what this device has.
	state state
}

// state is whether a feature is on offer.
type state int

const (
	no state = iota
	onRequest
	yes
	part // some of a row's bits
)

// parse reads the text of peers.txt.
func parse(text string) ([]section, error) {
	var list []section
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if head, rest, ok := strings.Cut(line, "]"); ok && head[0] == '[' {
			list = append(list, section{name: head[1:], peers: cells(rest)})
			continue
		}
		if len(list) == 0 {
			return nil, fmt.Errorf("peers.txt:%d: a row before the first section", n)
		}
		s := &list[len(list)-1]
		c := cells(line)
		if len(c) != 2+len(s.peers) {
			return nil, fmt.Errorf("peers.txt:%d: %d cells, want %d", n, len(c), 2+len(s.peers))
		}
		r := row{name: c[1], cells: c[2:]}
		for text := range strings.SplitSeq(c[0], ",") {
			if text == "-" {
				continue
			}
			bit, err := strconv.Atoi(text)
			if err != nil {
				return nil, fmt.Errorf("peers.txt:%d: %w", n, err)
			}
			r.bits = append(r.bits, bit)
		}
		s.rows = append(s.rows, r)
	}
	return list, nil
}

func cells(line string) (list []string) {
	for c := range strings.SplitSeq(line, "|") {
		list = append(list, strings.TrimSpace(c))
	}
	return list
}
