package main

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// source is a file of a package.
type source struct {
	*ast.File
	tagged bool // compiled only with a tag
}

// read parses files of dir.
func read(dir string, names []string) (files []source, err error) {
	for _, name := range names {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, 0)
		if err != nil {
			return nil, err
		}
		plain, err := build.Default.MatchFile(dir, name)
		if err != nil {
			return nil, err
		}
		files = append(files, source{f, !plain})
	}
	return files, nil
}

// slow are the tests of the tag slow. A test of another file is one when it uses, at any depth, a name that a file of the tag declares, or
// one of package cases: a number of cases that is larger there.
func slow(p packages) ([]string, error) { return those(p, p.paths(), changed) }

// laws are the tests of the rooms of formulas that draw cases with rapid, of which make slow wants more.
func laws(p packages) ([]string, error) {
	return those(p, []string{module + "reference/linalg", module + "reference/optim", module + "reference/rl", module + "verify/stage"}, drawing)
}

// those are the tests that pick finds in packages, and the packages in which it finds any.
func those(p packages, among []string, pick func([]source) []string) ([]string, error) {
	var paths []string
	tests := map[string]bool{}
	for _, path := range among {
		found := false
		for _, names := range [][]string{p[path].TestGoFiles, p[path].XTestGoFiles} {
			files, err := read(p[path].Dir, names)
			if err != nil {
				return nil, err
			}
			for _, name := range pick(files) {
				found, tests[name] = true, true
			}
		}
		if found {
			paths = append(paths, path)
		}
	}
	return append([]string{"-run=^(" + strings.Join(slices.Sorted(maps.Keys(tests)), "|") + ")$"}, paths...), nil
}

// changed are the tests that a tag of the build changes.
func changed(files []source) []string { return using(files, module+"internal/cases", true) }

// drawing are the tests that draw cases.
func drawing(files []source) []string { return using(files, "pgregory.net/rapid", false) }

// using are the tests that use, at any depth, a package or a name of a file with a tag.
func using(files []source, imported string, tagged bool) (tests []string) {
	hit := map[string]bool{}
	uses := map[string]map[string]bool{} // of a function or a variable: the names of the package that it uses
	for _, f := range files {
		for _, i := range f.Imports {
			if i.Path.Value == `"`+imported+`"` {
				name := filepath.Base(imported)
				if i.Name != nil {
					name = i.Name.Name
				}
				hit[name] = true
			}
		}
		free := map[*ast.Ident]bool{} // names that the file does not declare, or declares for the package
		for _, id := range f.Unresolved {
			free[id] = true
		}
		declare := func(name string, body ast.Node) {
			hit[name] = hit[name] || tagged && f.tagged
			if uses[name] == nil {
				uses[name] = map[string]bool{}
			}
			ast.Inspect(body, func(n ast.Node) bool {
				if id, is := n.(*ast.Ident); is && (free[id] || id.Obj != nil && f.Scope.Lookup(id.Name) == id.Obj) {
					uses[name][id.Name] = true
				}
				return true
			})
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					name = receiver(d.Recv.List[0].Type) // who uses the type may call it
				}
				declare(name, d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						for _, name := range spec.Names {
							declare(name.Name, spec)
						}
					case *ast.TypeSpec:
						declare(spec.Name.Name, spec)
					}
				}
			}
		}
	}
	for again := true; again; {
		again = false
		for name, used := range uses {
			for other := range used {
				if hit[other] && !hit[name] {
					hit[name], again = true, true
				}
			}
		}
	}
	for name := range uses {
		if hit[name] && strings.HasPrefix(name, "Test") && name != "TestMain" {
			tests = append(tests, name)
		}
	}
	slices.Sort(tests)
	return tests
}

// receiver is the name of a method's type.
func receiver(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.IndexListExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}

// race are the packages whose tests can run two goroutines of this module.
func race(p packages) ([]string, error) {
	hit := map[string]bool{}
	for _, path := range p.paths() {
		one := p[path]
		for at, names := range map[string][]string{path: one.GoFiles, path + ".test": slices.Concat(one.TestGoFiles, one.XTestGoFiles)} {
			files, err := read(one.Dir, names)
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(files, source.starts) {
				hit[at] = true
			}
		}
	}
	return without("race", p.reaching(hit)), nil
}

// starts reports whether the file starts a goroutine: with go, with Go of a WaitGroup or a group, with AfterFunc, or as tests beside each other.
func (s source) starts() (found bool) {
	ast.Inspect(s.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.CallExpr:
			if f, is := n.Fun.(*ast.SelectorExpr); is && slices.Contains([]string{"Go", "AfterFunc", "Parallel"}, f.Sel.Name) {
				found = true
			}
		}
		return !found
	})
	return found
}
