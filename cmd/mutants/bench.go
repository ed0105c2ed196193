package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A module is the packages to mutate, their sites, and who imports whom.
type module struct {
	root    string
	targets []string            // import paths
	files   map[string][]string // of a target: its files, relative to the root
	folder  map[string]string   // of a folder, relative to the root: its import path
	users   map[string][]string // of a package: those that import it, in code or in tests
	tests   map[string]int      // of a package: the bytes of its tests
	sites   []site
	exports map[string]string // of a package: its export data
	source  map[string][]byte
}

type listed struct {
	Dir, ImportPath, Export            string
	GoFiles                            []string
	TestGoFiles, XTestGoFiles          []string
	Imports, TestImports, XTestImports []string
}

func goList(args ...string) ([]listed, error) {
	cmd := exec.Command("go", append([]string{"list", "-json=Dir,ImportPath,Export,GoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

func load(patterns []string) (*module, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m: %w", err)
	}
	m := &module{root: strings.TrimSpace(string(out)), files: map[string][]string{}, folder: map[string]string{}, users: map[string][]string{},
		tests: map[string]int{}, exports: map[string]string{}, source: map[string][]byte{}}
	targets, err := goList(patterns...)
	if err != nil {
		return nil, err
	}
	deps, err := goList(append([]string{"-export", "-deps"}, patterns...)...)
	if err != nil {
		return nil, err
	}
	for _, p := range deps {
		m.exports[p.ImportPath] = p.Export
	}
	all, err := goList(m.root + "/...")
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		for _, f := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			if info, err := os.Stat(filepath.Join(p.Dir, f)); err == nil {
				m.tests[p.ImportPath] += int(info.Size())
			}
		}
		for _, i := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if i != p.ImportPath && len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 && !slices.Contains(m.users[i], p.ImportPath) {
				m.users[i] = append(m.users[i], p.ImportPath)
			}
		}
	}
	for _, p := range targets {
		dir, err := filepath.Rel(m.root, p.Dir)
		if err != nil {
			return nil, err
		}
		m.targets = append(m.targets, p.ImportPath)
		m.folder[dir] = p.ImportPath
		for _, f := range p.GoFiles {
			name := filepath.Join(dir, f)
			if m.source[name], err = os.ReadFile(filepath.Join(m.root, name)); err != nil {
				return nil, err
			}
			m.files[p.ImportPath] = append(m.files[p.ImportPath], name)
		}
		fset, parsed, info, err := m.check(p.ImportPath, nil)
		if err != nil {
			return nil, err
		}
		for i, f := range parsed {
			m.sites = append(m.sites, sitesOf(fset, f, m.files[p.ImportPath][i], info)...)
		}
	}
	return m, nil
}

// check parses and type-checks a package, with the mutant if there is one.
func (m *module) check(path string, mutant *site) (*token.FileSet, []*ast.File, *types.Info, error) {
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range m.files[path] {
		source := m.source[name]
		if mutant != nil && mutant.File == name {
			source = mutant.apply(source)
		}
		f, err := parser.ParseFile(fset, name, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, nil, err
		}
		parsed = append(parsed, f)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(p string) (io.ReadCloser, error) {
		if m.exports[p] == "" {
			return nil, fmt.Errorf("no export data of %s", p)
		}
		return os.Open(m.exports[p])
	})}
	_, err := conf.Check(path, fset, parsed, info)
	return fset, parsed, info, err
}

func (m *module) count() int { return len(m.sites) }

func (m *module) packageOf(s site) string { return m.folder[filepath.Dir(s.File)] }

// sample draws n sites whose mutants compile: the same ones for the same source and seed.
func (m *module) sample(n int, r *rand.Rand) []site {
	var chosen []site
	for _, i := range r.Perm(len(m.sites)) {
		if len(chosen) == n {
			break
		}
		s := m.sites[i]
		if _, _, _, err := m.check(m.packageOf(s), &s); err == nil {
			chosen = append(chosen, s)
		}
	}
	return chosen
}

// lines returns the lines of the mutant as they are and as they become.
func (m *module) lines(s site) (before, after string) {
	source := m.source[s.File]
	from := bytes.LastIndexByte(source[:s.From], '\n') + 1
	to := len(source)
	if i := bytes.IndexByte(source[s.To:], '\n'); i >= 0 {
		to = s.To + i
	}
	return strings.TrimSpace(string(source[from:to])), strings.TrimSpace(string(source[from:s.From]) + s.With + string(source[s.To:to]))
}

// A bench runs tests.
type bench struct {
	*module
	limit time.Duration
	skip  []string // packages, with those below them, that do not test their imports
	own   bool     // no package does
	mu    sync.Mutex
	usual map[string]func() (float64, error)
}

// baseline returns the seconds that the tests of a package take without a mutant, -1 where they fail: those kill nothing.
func (b *bench) baseline(path string) (float64, error) {
	b.mu.Lock()
	measure := b.usual[path]
	if measure == nil {
		measure = sync.OnceValues(func() (float64, error) {
			start := time.Now()
			outcome, by, err := b.test(path, "", b.limit)
			if err != nil {
				return 0, err
			}
			s := time.Since(start).Seconds()
			fmt.Printf("%-8s %s, %.0f s\n", "baseline", path, s)
			if outcome != "survived" {
				fmt.Printf("%s fails without a mutant (%s) and is left out\n", path, by)
				s = -1
			}
			return s, nil
		})
		b.usual[path] = measure
	}
	b.mu.Unlock()
	return measure()
}

// try runs the tests of the package of the mutant and then of those that import it, the fewest first.
func (b *bench) try(s site) (trial, error) {
	path := b.packageOf(s)
	t := trial{site: s, Package: path, Outcome: "survived"}
	t.Before, t.After = b.lines(s)
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return t, err
	}
	defer os.RemoveAll(dir)
	mutated, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(b.root, s.File): mutated}})
	if err != nil {
		return t, err
	}
	if err := errors.Join(os.WriteFile(mutated, s.apply(b.source[s.File]), 0o644), os.WriteFile(overlay, replace, 0o644)); err != nil {
		return t, err
	}
	start := time.Now()
	users := slices.DeleteFunc(slices.Clone(b.users[path]), func(u string) bool {
		return b.own || slices.ContainsFunc(b.skip, func(s string) bool { return s != "" && strings.HasPrefix(u+"/", s+"/") })
	})
	slices.SortStableFunc(users, func(x, y string) int { return b.tests[x] - b.tests[y] })
	for _, u := range append([]string{path}, users...) {
		usual, err := b.baseline(u)
		if err != nil {
			return t, err
		}
		if usual < 0 {
			continue
		}
		outcome, by, err := b.test(u, overlay, min(b.limit, time.Minute+time.Duration(10*usual)*time.Second))
		if err != nil {
			return t, err
		}
		if outcome != "survived" {
			t.Outcome, t.By = outcome, strings.TrimSuffix(u+" "+by, " ")
			break
		}
	}
	t.Seconds = time.Since(start).Seconds()
	return t, nil
}

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// test runs the short tests of a package.
func (b *bench) test(path, overlay string, limit time.Duration) (outcome, by string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit+5*time.Minute) // -timeout does not count compilation
	defer cancel()
	args := []string{"test", "-short", "-failfast", "-vet=off", "-count=1", "-timeout", limit.String()}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, path)...)
	cmd.Dir = b.root
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, failed := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case failed == nil:
		return "survived", "", nil
	case ctx.Err() != nil || bytes.Contains(out, []byte("panic: test timed out")):
		return "timeout", "", nil
	case !errors.As(failed, &exit):
		return "", "", failed
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		return "", "", fmt.Errorf("%s does not build: %s", path, out)
	}
	if m := failedTest.FindSubmatch(out); m != nil {
		by = string(m[1])
	}
	return "killed", by, nil
}
