package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What each step may not leave out, and what it has no reason to run.
func TestSteps(t *testing.T) {
	for _, c := range []struct {
		name           string
		step           func(packages) ([]string, error)
		runs, leaves   string
		tests, noTests string
	}{
		{"slow", slow, "accel cmd/train cmd/verify internal/rundir verify/dump", "internal/dataset reference/rl",
			// the last three stand in files without the tag, and use a number of a file with it
			"TestPlantedInKernels TestLargeBasis TestTenThousandHealthyAreSilent TestKilledAtRandom TestPowerLoss TestKernelFaults", "TestProjectionCases TestImportLaw"},
		{"laws", laws, "reference/linalg reference/optim reference/rl verify/stage", "verify/dump verify/update", "TestPolicyLaws TestAggregateLaws", "TestFormsOfBareLosses"},
		{"purego", purego, "accel accel/f32 accel/model internal/bind", "internal/tokenizer verify/dump reference/rl cmd/verify accel/cuda", "", ""},
		{"race", race, "accel/cpu internal/cluster internal/format/npy verify/fault verify/dump verify/projection verify/checkpoint reference/rl", "internal/config verify/tol cmd/verify", "", ""},
	} {
		args, err := run(c.name, c.step)
		require.NoError(t, err)
		for _, path := range strings.Fields(c.runs) {
			require.Contains(t, args, module+path, c.name)
		}
		for _, path := range strings.Fields(c.leaves) {
			require.NotContains(t, args, module+path, c.name)
		}
		for _, test := range strings.Fields(c.tests) {
			require.Regexp(t, regexp.MustCompile(strings.TrimPrefix(args[0], "-run=")), test)
		}
		for _, test := range strings.Fields(c.noTests) {
			require.NotRegexp(t, regexp.MustCompile(strings.TrimPrefix(args[0], "-run=")), test)
		}
	}
	_, err := run("empty", func(packages) ([]string, error) { return []string{"-run=^()$"}, nil })
	require.ErrorContains(t, err, "nothing to run")
}

// The reasons of apart hold: these tests open no accelerated policy.
func TestApart(t *testing.T) {
	opens := regexp.MustCompile(`bind\.(OpenBase|NewAccelerated|NewLockstep|OpenDevice|NewOnDevice)|plumbline/accel`)
	for path, want := range map[string]bool{"train": false, "cluster": false, "bind": true} {
		files, err := filepath.Glob(filepath.Join("../../../internal", path, "*_test.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		found := false
		for _, name := range files {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			found = found || opens.Match(text)
		}
		require.Equal(t, want, found, path)
	}
	for _, a := range apart {
		require.NotEmpty(t, a.why)
		require.DirExists(t, filepath.Join("../../..", strings.TrimPrefix(a.path, module)))
	}
}

func TestFused(t *testing.T) {
	listing := "# plumbline/a\n\t0x0011 00017 (a.go:3)\tVFMADD231SD\tX1, X2, X3\n# plumbline/b\n\t0x0011 00017 (b.go:3)\tMULSD\tX1, X2\n# plumbline/c\n\t0x1 1 (c.go:3)\tVFNMSUB213SS\tX1, X2, X3\n"
	require.Equal(t, []string{"plumbline/a", "plumbline/c"}, fusedIn(listing))
}

// A name of a tagged file reaches a test over functions, methods and variables; a local variable of the same name does not.
func TestChanged(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a_test.go": "//go:build slow && !other\n\npackage a\n\nconst cases = 9\n\nfunc TestTagged(t *testing.T) {}\n",
		"b_test.go": "package a\n\nfunc TestDirect(t *testing.T) { _ = cases }\nfunc TestLocal(t *testing.T) { cases := 1; _ = cases }\nfunc TestDeep(t *testing.T) { deep() }\n" +
			"func TestMethod(t *testing.T) { var w world; w.run() }\nfunc TestMain(m *testing.M) { deep() }\nfunc TestField(t *testing.T) { t.cases() }\n",
		"c_test.go": "package a\n\nvar table = cases + 1\n\nfunc deep() { _ = table }\n\ntype world int\n\nfunc (w *world) run() { deep() }\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	files, err := read(dir, []string{"a_test.go", "b_test.go", "c_test.go"})
	require.NoError(t, err)
	require.Equal(t, []string{"TestDeep", "TestDirect", "TestMethod", "TestTagged"}, changed(files))

	text := "package a\n\nimport part \"plumbline/internal/cases\"\n\nfunc TestEvery(t *testing.T) { _ = part.Every }\nfunc TestOther(t *testing.T) {}\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "d_test.go"), []byte(text), 0o600))
	files, err = read(dir, []string{"d_test.go"})
	require.NoError(t, err)
	require.Equal(t, []string{"TestEvery"}, changed(files))
}

func TestStarts(t *testing.T) {
	for text, want := range map[string]bool{
		"func f() { go f() }": true, "func f() { group.Go(f) }": true, "func f(t T) { t.Parallel() }": true, "func f() { context.AfterFunc(c, f) }": true,
		"func f() { f() }": false, "// go f()\nfunc f() {}": false,
	} {
		path := filepath.Join(t.TempDir(), "a.go")
		require.NoError(t, os.WriteFile(path, []byte("package a\n"+text), 0o600))
		files, err := read(filepath.Dir(path), []string{"a.go"})
		require.NoError(t, err)
		require.Equal(t, want, files[0].starts(), text)
	}
}
