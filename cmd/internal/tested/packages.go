package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// pkg is a package of this module as go list prints it: path, "path [path.test]" compiled for a test, or "path.test".
type pkg struct {
	ImportPath, ForTest, Dir                     string
	GoFiles, CgoFiles, SFiles, IgnoredGoFiles    []string
	TestGoFiles, XTestGoFiles, IgnoredOtherFiles []string
	Deps                                         []string
	Standard                                     bool
}

// packages are those of the module by their import path.
type packages map[string]*pkg

const module = "plumbline/"

var lists = map[string]packages{} // of go list, which takes a second, by its arguments

// list is go list of all packages and their tests.
func list(args ...string) (packages, error) {
	key := strings.Join(args, " ")
	if p := lists[key]; p != nil {
		return p, nil
	}
	cmd := exec.Command("go", append(append([]string{"list", "-deps", "-test", "-json=ImportPath,ForTest,Dir,GoFiles,CgoFiles,SFiles,TestGoFiles,XTestGoFiles,Deps,Standard"},
		args...), module+"...")...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	p := packages{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var one pkg
		if err := dec.Decode(&one); errors.Is(err, io.EOF) {
			lists[key] = p
			return p, nil
		} else if err != nil {
			return nil, err
		}
		if strings.HasPrefix(one.ImportPath, module) {
			p[one.ImportPath] = &one
		}
	}
}

// paths are the packages as the user names them, in order.
func (p packages) paths() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(p)), func(path string) bool { return p[path].ForTest != "" || strings.HasSuffix(path, ".test") })
}

// apart are packages that a step leaves out although their test programs hold what it is about.
var apart = []struct {
	path  string
	steps []string
	why   string
}{
	{"plumbline/cmd/", []string{"purego", "v3", "race"}, "their tests run the built programs: the Makefile names those that differ, and no built program has the race detector"},
	{"plumbline/benchmarks", []string{"purego", "v3", "race"}, "has benchmarks and no tests"},
	{"plumbline/accel/cuda", []string{"purego", "race"}, "the simulator has no assembly and no goroutines, and a driver is tried where a device is"},
	{"plumbline/internal/train", []string{"purego", "race"}, "its tests open reference policies, which have neither; internal/bind tries the accelerated ones"},
	{"plumbline/internal/cluster", []string{"purego"}, "its workers serve reference policies"},
}

// without are the paths that step does not leave out.
func without(step string, paths []string) []string {
	return slices.DeleteFunc(paths, func(path string) bool {
		for _, a := range apart {
			if strings.HasPrefix(path+"/", strings.TrimSuffix(a.path, "/")+"/") && slices.Contains(a.steps, step) {
				return true
			}
		}
		return false
	})
}

// reaching are the packages whose tests run a package of hit: it is in their test program.
func (p packages) reaching(hit map[string]bool) (paths []string) {
	for _, path := range p.paths() {
		test := p[path+".test"]
		if test != nil && slices.ContainsFunc(append(test.Deps, test.ImportPath), func(dep string) bool { return hit[plain(dep)] }) {
			paths = append(paths, path)
		}
	}
	return paths
}

// plain is the import path of a package that may be compiled anew for a test.
func plain(path string) string {
	path, _, _ = strings.Cut(path, " ")
	return path
}

// purego compares what packages, and packages for tests, are made of with the tag and without.
func purego(p packages) ([]string, error) {
	with, err := list("-tags", "purego")
	if err != nil {
		return nil, err
	}
	return without("purego", with.reaching(differ(p, with))), nil
}

// differ are the packages that are not made of the same files.
func differ(a, b packages) map[string]bool {
	hit := map[string]bool{}
	files := func(p *pkg) []string { return slices.Concat(p.GoFiles, p.CgoFiles, p.SFiles) }
	for path, in := range b {
		if old := a[path]; !strings.HasSuffix(path, ".test") && (old == nil || !slices.Equal(files(old), files(in))) {
			hit[plain(path)] = true
		}
	}
	return hit
}

// fused is an instruction that multiplies and adds with one rounding, in a listing of the compiler for amd64.
var fused = regexp.MustCompile(`\sVFN?M(ADD|SUB)\d+[SP][SD]\s`)

// v3 reads the compiler's listing of the module. Of a package that holds no fused instruction the arithmetic is that of the default build; the
// reference must hold none.
func v3(p packages) ([]string, error) {
	cmd := exec.Command("go", "build", "-gcflags="+module+"...=-S", module+"...")
	cmd.Env = append(cmd.Environ(), "GOARCH=amd64", "GOAMD64=v3")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go build: %w\n%.2000s", err, out)
	}
	paths := fusedIn(string(out))
	if i := slices.IndexFunc(paths, func(path string) bool { return strings.HasPrefix(path, module+"reference/") }); i >= 0 {
		return nil, fmt.Errorf("%s holds fused multiply-adds: write float64(a*b) + c", paths[i])
	}
	return without("v3", paths), nil
}

// fusedIn are the packages of a listing that hold fused instructions.
func fusedIn(listing string) (paths []string) {
	at := ""
	for line := range strings.Lines(listing) {
		if path, is := strings.CutPrefix(line, "# "); is {
			at = strings.TrimSpace(path)
		} else if strings.Contains(line, "\tVF") && fused.MatchString(line) && !slices.Contains(paths, at) {
			paths = append(paths, at)
		}
	}
	slices.Sort(paths)
	return paths
}
