package internal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// law is the import law: what each room may import beside the standard library. The first prefix that matches a package
// decides; a pattern ending in / allows what lies below it. Do not add to a room just to make this test pass: the rooms
// exist so that what is right (reference) cannot borrow from what is fast (accel), nor the other way round.
var law = []struct {
	room    string
	allowed []string
}{
	{"plumbline/reference/", []string{"gonum.org/v1/gonum/", "plumbline/reference/"}},
	{"plumbline/accel/cuda", []string{"plumbline/internal/rng", "plumbline/internal/arch", "plumbline/internal/format/", "plumbline/accel/", "golang.org/x/sys/", "github.com/ebitengine/purego", "gorgonia.org/cu"}},
	{"plumbline/accel/", []string{"plumbline/internal/rng", "plumbline/internal/arch", "plumbline/internal/format/", "plumbline/accel/", "golang.org/x/sys/"}},
	{"plumbline/verify/tol", nil},
	{"plumbline/verify/check", []string{"plumbline/verify/tol", "plumbline/internal/words"}},
	{"plumbline/verify/bug", nil},
	{"plumbline/verify/symptom", []string{"plumbline/verify/bug", "plumbline/internal/format/"}}, // rules over logged numbers: trainers judge theirs by them, too
	{"plumbline/verify/report", []string{"plumbline/verify/check", "plumbline/internal/format", "github.com/olekukonko/tablewriter/", "gonum.org/v1/plot/"}},
	{"plumbline/verify/vram", []string{"plumbline/verify/check", "plumbline/internal/arch", "plumbline/internal/format/"}},
	{"plumbline/verify/plant/", []string{"plumbline/verify/", "plumbline/reference/", "plumbline/internal/arch", "plumbline/internal/format/", "plumbline/internal/rng"}}, // what tests the checks
	{"plumbline/verify/", []string{"plumbline/verify/tol", "plumbline/verify/check", "plumbline/verify/stage", "plumbline/verify/update", "plumbline/verify/convention", "plumbline/verify/fault/", "plumbline/verify/bug", "plumbline/verify/symptom",
		"plumbline/reference/", "plumbline/internal/format/", "plumbline/internal/rng", "plumbline/internal/words", "plumbline/internal/arch", "plumbline/internal/assets", "plumbline/internal/tokenizer", "plumbline/internal/pretrained", "plumbline/internal/refmodel", "plumbline/golden"}},
	{"plumbline/golden", []string{"plumbline/internal/format/"}},
	{"plumbline/internal/arch", nil},
	{"plumbline/internal/format", []string{"plumbline/internal/format/", "plumbline/internal/arch"}}, // hf reads a config.json into arch.Config
	{"plumbline/internal/tokenizer", []string{"plumbline/internal/format", "golang.org/x/text/"}},
	{"plumbline/internal/pretrained", []string{"plumbline/internal/arch", "plumbline/internal/format/", "plumbline/internal/tokenizer"}}, // also opens models for accel
	{"plumbline/internal/memory", nil},
	{"plumbline/internal/refmodel", []string{"plumbline/internal/arch", "plumbline/internal/memory", "plumbline/internal/format/", "plumbline/internal/pretrained", "plumbline/reference/"}},
	{"plumbline/internal/rng", nil},
	{"plumbline/internal/words", nil},
	{"plumbline/internal/assets", nil},
	{"plumbline/internal/train", []string{"plumbline/reference/rl", "plumbline/reference/optim", "plumbline/reference/linalg", "plumbline/reference/ad", "plumbline/reference/nn", "plumbline/reference/sampling", "plumbline/reference/quant", "plumbline/internal/", "plumbline/verify/symptom"}},
	{"plumbline/internal/bind", []string{"plumbline/accel/", "plumbline/reference/", "plumbline/internal/"}},
	{"plumbline/internal/cluster", []string{"plumbline/internal/", "github.com/nats-io/"}},
	{"plumbline/internal", []string{"plumbline/internal/", "go.yaml.in/yaml/v3"}},
	{"plumbline/cmd/", []string{"plumbline/", "github.com/spf13/", "golang.org/x/sys/"}},
	{"plumbline/benchmarks", []string{"plumbline/"}},
}

// inTests is what test files may import beside what their room may; jsonschema proves the report against its schema, and cases knows whether a test is slow.
var inTests = []string{"pgregory.net/rapid", "github.com/stretchr/testify/require", "github.com/santhosh-tekuri/jsonschema/v6", "plumbline/internal/cases"}

// testRooms adds rooms for test files only.
var testRooms = map[string][]string{"plumbline/accel/": {"plumbline/verify/op", "plumbline/reference/"}, "plumbline/verify/": {"plumbline/verify/"}}

type listed struct {
	ImportPath                string
	Standard                  bool
	Imports                   []string
	TestImports, XTestImports []string
}

func goList(t *testing.T, args ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Imports,TestImports,XTestImports"}, args...)...)
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

func within(path string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		return path == strings.TrimSuffix(p, "/") || strings.HasSuffix(p, "/") && strings.HasPrefix(path, p)
	})
}

func standard(path string) bool {
	return !strings.Contains(strings.SplitN(path, "/", 2)[0], ".") && !strings.HasPrefix(path, "plumbline")
}

// violations returns the imports of p that the law forbids.
func violations(p listed) []string {
	allowed, found := []string(nil), false
	for _, l := range law {
		if strings.HasSuffix(l.room, "/") && strings.HasPrefix(p.ImportPath+"/", l.room) || p.ImportPath == l.room || strings.HasPrefix(p.ImportPath, l.room+"/") {
			allowed, found = l.allowed, true
			break
		}
	}
	if !found {
		return []string{"lies in no room of the law"}
	}
	var bad []string
	see := func(imports []string, more ...string) {
		for _, i := range imports {
			if !standard(i) && i != p.ImportPath && !within(i, allowed) && !within(i, more) {
				bad = append(bad, i)
			}
		}
	}
	see(p.Imports)
	more := slices.Clone(inTests)
	for room, extra := range testRooms {
		if strings.HasPrefix(p.ImportPath+"/", room) {
			more = append(more, extra...)
		}
	}
	see(p.TestImports, more...)
	see(p.XTestImports, more...)
	return bad
}

func TestImportLaw(t *testing.T) {
	packages := goList(t, "./...")
	require.Greater(t, len(packages), 8)
	for _, p := range packages {
		require.Empty(t, violations(p), "%s imports what its room may not", p.ImportPath)
	}
}

// NATS is for the trainer: verify is installed where nothing should listen.
func TestNoQueueInVerify(t *testing.T) {
	for program, want := range map[string]bool{"verify": false, "train": true} {
		cmd := exec.Command("go", "list", "-deps", "./cmd/"+program)
		cmd.Dir = ".."
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, want, bytes.Contains(out, []byte("github.com/nats-io/")), program)
	}
}

// The law must be able to fail.
func TestImportLawFails(t *testing.T) {
	for _, p := range []listed{
		{ImportPath: "plumbline/accel/i8", Imports: []string{"plumbline/reference/nn"}},
		{ImportPath: "plumbline/reference/nn", Imports: []string{"plumbline/internal/format"}},
		{ImportPath: "plumbline/reference/nn", Imports: []string{"github.com/stretchr/testify/require"}},
		{ImportPath: "plumbline/verify/dump", Imports: []string{"plumbline/accel"}},
		{ImportPath: "plumbline/verify/dump", Imports: []string{"plumbline/verify/projection"}},
		{ImportPath: "plumbline/verify/diff", Imports: []string{"plumbline/verify/dump"}},
		{ImportPath: "plumbline/verify/vram", Imports: []string{"plumbline/verify/checkpoint"}},
		{ImportPath: "plumbline/verify/projection", Imports: []string{"github.com/spf13/cobra"}},
		{ImportPath: "plumbline/verify/projection", Imports: []string{"github.com/olekukonko/tablewriter"}},
		{ImportPath: "plumbline/verify/dump", Imports: []string{"plumbline/verify/plant/trainer"}},
		{ImportPath: "plumbline/verify/plant/trainer", Imports: []string{"plumbline/internal/train"}},
		{ImportPath: "plumbline/verify/symptom", Imports: []string{"plumbline/verify/check"}},
		{ImportPath: "plumbline/internal/train", Imports: []string{"plumbline/verify/check"}},
		{ImportPath: "plumbline/verify/tol", Imports: []string{"plumbline/verify/check"}},
		{ImportPath: "plumbline/internal/format/npy", Imports: []string{"golang.org/x/sys/unix"}},
		{ImportPath: "plumbline/internal/pretrained", Imports: []string{"plumbline/internal/train"}},
		{ImportPath: "plumbline/internal/pretrained", Imports: []string{"plumbline/reference/model"}},
		{ImportPath: "plumbline/verify/golden", Imports: []string{"plumbline/internal/bind"}},
		{ImportPath: "plumbline/internal/bind", Imports: []string{"plumbline/verify/op"}},
		{ImportPath: "plumbline/internal/arch", Imports: []string{"plumbline/internal/format"}},
		{ImportPath: "plumbline/helper", Imports: nil},
	} {
		require.NotEmpty(t, violations(p), "%v", p)
	}
	require.Empty(t, violations(listed{ImportPath: "plumbline/verify/projection", Imports: []string{"plumbline/internal/format/npy", "fmt"}, TestImports: []string{"pgregory.net/rapid"}}))
}
