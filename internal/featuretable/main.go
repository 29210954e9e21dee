package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run writes both files.
func run() error {
	dir, err := root()
	if err != nil {
		return err
	}
	want, err := files(dir)
	if err != nil {
		return err
	}
	for name, text := range want {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// files are the texts of both files, by name.
func files(dir string) (map[string]string, error) {
	list, reg, err := tables()
	if err != nil {
		return nil, err
	}
	exists, err := testsOf(dir)
	if err != nil {
		return nil, err
	}
	if problems := append(check(list, exists), offered(list, reg)...); len(problems) > 0 {
		return nil, fmt.Errorf("featuretable:\n%s", strings.Join(problems, "\n"))
	}
	old, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		return nil, err
	}
	text, err := replace(string(old), readme(list))
	if err != nil {
		return nil, fmt.Errorf("featuretable: README.md: %w", err)
	}
	return map[string]string{"README.md": text, "FEATURES.md": matrix(list)}, nil
}
