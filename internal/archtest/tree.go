package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// module is the import path of the module.
const module = "github.com/vhostnet/vhostnet"

// file is one Go file of the module.
type file struct {
	path    string // below the root, with slashes
	folder  string // its folder, "." for the root
	test    bool
	lines   int
	pkg     string
	doc     string // the package comment
	imports []string
}

// root finds the module's folder above the working directory.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(b, []byte("module "+module+"\n")) {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("archtest: no go.mod of %s above the working directory", module)
		}
		dir = up
	}
}

// load parses all Go files below root that belong to the module: it leaves out
// what the go command leaves out, and nested modules.
func load(root string) ([]file, error) {
	var files []file
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path == root {
				return nil
			}
			if name[0] == '.' || name[0] == '_' || name == "testdata" || name == "vendor" {
				return filepath.SkipDir
			}
			if _, err := os.Lstat(filepath.Join(path, "go.mod")); err == nil {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || name[0] == '.' || name[0] == '_' {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parse(filepath.ToSlash(rel), src)
		if err != nil {
			return err
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

func parse(rel string, src []byte) (file, error) {
	tree, err := parser.ParseFile(token.NewFileSet(), rel, src, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return file{}, fmt.Errorf("archtest: %w", err)
	}
	f := file{
		path:   rel,
		folder: filepath.ToSlash(filepath.Dir(rel)),
		test:   strings.HasSuffix(rel, "_test.go"),
		lines:  bytes.Count(src, []byte("\n")),
		pkg:    tree.Name.Name,
		doc:    tree.Doc.Text(),
	}
	for _, spec := range tree.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return file{}, fmt.Errorf("archtest: %s: %w", rel, err)
		}
		f.imports = append(f.imports, p)
	}
	return f, nil
}

// below tells whether path is prefix or lies below it.
func below(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// selectors returns the names that a file uses of an imported package.
func selectors(path, importPath string) ([]string, error) {
	tree, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return nil, fmt.Errorf("archtest: %w", err)
	}
	local := ""
	for _, spec := range tree.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err != nil || p != importPath {
			continue
		}
		local = importPath[strings.LastIndexByte(importPath, '/')+1:]
		if spec.Name != nil {
			local = spec.Name.Name
		}
	}
	var names []string
	ast.Inspect(tree, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && local != "" && id.Name == local {
				names = append(names, sel.Sel.Name)
			}
		}
		return true
	})
	return names, nil
}
