package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"plumbline/cmd/internal/built"
	"plumbline/verify/report"
)

// binary is the built program: exit codes and streams are those of a process.
var binaryPath string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "verify-test-")
	if err != nil {
		panic(err)
	}
	binaryPath = filepath.Join(dir, "verify")
	if err := built.Program(binaryPath, "."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if _, set := os.LookupEnv("GOGC"); !set { // a test that measures its own program has set it
		os.Setenv("GOGC", built.GOGC)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// verify runs the program in dir.
func verify(t *testing.T, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(binaryPath, args...)
	cmd.Dir = dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// One exit code and one fragment of the reason for each case, from the built program.
func TestProjectionCases(t *testing.T) {
	dir := workspace(t)
	cases := []struct {
		name     string
		args     string
		code     int
		fragment string // of stdout or stderr
	}{
		// Bases that pass.
		{"f32", "--basis q.npy", 0, "nothing failed"},
		{"f64", "--basis q_f64.npy", 0, "nothing failed"},
		{"f16", "--basis q_f16.npy", 0, "H3c"},
		{"bf16 safetensors", "--basis q_bf16.safetensors", 0, "H3c"},
		{"bf16 npy", "--basis bf16.npy --assume-bf16", 0, "H3c"},
		{"bf16 npy without the flag", "--basis bf16.npy", 4, "--assume-bf16"},
		{"Fortran order", "--basis q_fortran.npy", 0, "Fortran order"},
		{"transposed", "--basis q_transposed.npy", 0, "read as its transpose"},
		{"big-endian", "--basis q_big_endian.npy", 0, "nothing failed"},
		{"version 1", "--basis v1.npy", 0, "nothing failed"},
		{"version 2", "--basis v2.npy", 0, "nothing failed"},
		{"version 3", "--basis v3.npy", 0, "nothing failed"},
		{"npz member", "--basis bases.npz:Q", 0, "nothing failed"},
		{"safetensors entry", "--basis q_bf16.safetensors:Q", 0, "H3c"},
		{"trailing bytes", "--basis trailing.npy", 0, "trailing"},
		{"one piece", "--basis q.npy --reference", 0, "nothing failed"},
		{"warnings count", "--basis q_f16.npy --fail-on warn", 1, "WARN"},

		// Bases that do not.
		{"column scaled by 1.001", "--basis q_column_scaled.npy", 1, "column 5 is not normalised"},
		{"two equal columns", "--basis q_equal_columns.npy", 1, "columns 2 and 7 are parallel"},
		{"NaN", "--basis nan.npy", 1, "row 100, column 3"},
		{"infinity", "--basis inf.npy", 1, "row 767, column 11"},
		{"square", "--basis square.npy", 1, "spans the whole space"},
		{"wider than high, and the gradient says so", "--basis wide.npy --grad g24.npy", 1, "K ≥ d"},
		{"wider than high", "--basis wide.npy", 0, "read as its transpose"},
		{"one-dimensional", "--basis one_dimensional.npy", 1, "1-dimensional"},
		{"integer", "--basis integer.npy", 1, "want a floating-point type"},
		{"Fortran numbers in a C file", "--basis read_as_c.npy", 1, "BASIS-ORDER"},

		// Files that cannot be used.
		{"truncated", "--basis truncated.npy", 4, "truncated.npy"},
		{"object array", "--basis object.npy", 4, "pickle"},
		{"lying header", "--basis lying.npy", 4, "lying.npy"},
		{"empty file", "--basis empty.npy", 4, "empty.npy"},
		{"text", "--basis text.txt", 4, "not one of"},
		{"torch pickle", "--basis model.pt", 4, "torch.load"},
		{"directory", "--basis lora_init", 4, "directory"},
		{"missing", "--basis nowhere.npy", 2, "nowhere.npy"},
		{"device", "--basis /dev/zero", 4, "device"},

		// Names and flags.
		{"npz without a name", "--basis bases.npz", 2, "name the basis"},
		{"npz with a wrong name", "--basis bases.npz:P", 2, "Q"},
		{"safetensors with a wrong name", "--basis q_bf16.safetensors:P", 2, "Q"},
		{"member of npy", "--basis q.npy:Q", 2, "no members"},
		{"no basis", "", 2, "--basis"},
		{"unknown flag", "--bassis q.npy", 2, "--basis"},
		{"unknown flag that begins like one", "--basis q.npy --tolerance 1", 2, "--tol?"},
		{"argument", "q.npy", 2, "no arguments"},
		{"bad tolerance", "--basis q.npy --tol -1", 2, "--tol"},
		{"bad kind", "--basis q.npy --kind both", 2, "flat or side"},
		{"bad format", "--basis q.npy --format yaml", 2, "human, json, junit"},
		{"unknown check", "--basis q.npy --select basis/orthogonal", 2, "basis/orthonormal"},
		{"bad picture", "--basis q.npy --grad g.npy --plot p.gif", 2, ".svg"},
		{"picture in no folder", "--basis q.npy --grad g.npy --plot nowhere/p.svg", 2, "nowhere"},
		{"counts differ", "--basis q.npy --grad g.npy --grad g.npy --projected g.npy", 2, "2 raw gradients"},
		{"nothing to draw", "--basis q.npy --plot p.svg", 2, "no components"},
		{"nothing to repair", "--basis nan.npy --orthonormalize out.npy", 2, "not finite"},
		{"repair under another name", "--basis q.npy --orthonormalize out.txt", 2, ".npy"},
		{"init without adapter", "--basis q.npy --init lora_init", 2, "--adapter"},

		// Gradients.
		{"unprojected", "--basis q.npy --grad g.npy", 1, "never projected"},
		{"projected", "--basis q.npy --grad g_projected.npy", 0, "nothing failed"},
		{"raw and projected", "--basis q.npy --grad g.npy --projected g_projected.npy", 0, "nothing failed"},
		{"raw and projected twice", "--basis q.npy --grad g.npy --projected g_projected_twice.npy", 0, "nothing failed"},
		{"norm 100 by NumPy", "--basis q.npy --grad g100_projected.npy", 0, "nothing failed"},
		{"norm 100 by NumPy, raw given", "--basis q.npy --grad g100.npy --projected g100_projected.npy", 0, "nothing failed"},
		{"norm 100, accumulated in float64", "--basis q.npy --grad g100.npy --projected g100_projected_f64.npy", 0, "nothing failed"},
		{"norm 100, summed in order", "--basis long_q.npy --grad long_p.npy", 0, "H3d"},
		{"norm 100, raw given", "--basis long_q.npy --grad long_g.npy --projected long_p.npy", 0, "project twice"},
		{"no-op", "--basis q.npy --grad g.npy --projected g.npy", 1, "no-op"},
		{"another gradient", "--basis q.npy --grad g.npy --projected g100_projected.npy", 1, "right up to the factor 100"},
		{"another basis", "--basis bases.npz:Q --grad g_projected.npy", 0, "nothing failed"},
		{"length", "--basis q.npy --grad long_g.npy", 1, "8192 elements"},
		{"length, other number", "--basis q.npy --grad long_g.npy", 1, "768 rows"},
		{"gradients by tensor", "--basis q.npy --grad grads.safetensors", 1, "Gradient flow: min=0.028"},
		{"gradient is zero", "--basis q.npy --grad zero_grads.safetensors", 1, "A10"},
		{"nothing trainable", "--basis q.npy --grad no_grads.safetensors", 1, "no trainable parameters"},
		{"a tensor without gradient", "--basis side.npy --grad one_grad.safetensors --adapter side_held --init side_init", 1, "no gradient"},
		{"update", "--basis q.npy --update g_projected.npy", 0, "update/component"},
		{"update that leaks", "--basis q.npy --update g.npy", 1, "update/component"},

		// Adapters.
		{"adapter held", "--basis q.npy --adapter lora_held --init lora_init", 0, "weights-delta"},
		{"Adam's leak", "--basis q.npy --adapter lora_leak --init lora_init", 1, "H3a"},
		{"raw weights", "--basis q.npy --adapter lora_held", 6, "H3b"},
		{"file in place of a folder", "--basis q.npy --adapter lora_held/adapter_model.safetensors --init lora_init", 0, "nothing failed"},
		{"side basis held", "--basis side.npy --adapter side_held --init side_init", 0, "side: on the left"},
		{"side basis, not held", "--basis side.npy --adapter side_free --init side_init", 1, "adapter/drift"},
		{"stated kind that does not fit", "--basis side.npy --kind flat --adapter side_free --init side_init", 1, "the reading is flat"},
		{"adapter untrained", "--basis q.npy --adapter lora_init --init lora_init", 0, "nothing was trained"},
		{"adapters of two models", "--basis q.npy --adapter side_held --init lora_init", 1, "is in side_held but not in lora_init"},
		{"pickled adapter", "--basis q.npy --adapter pickled", 4, "save_file"},
		{"folder without adapter", "--basis q.npy --adapter nothing", 2, "adapter_model.safetensors"},

		// Selection.
		{"select", "--basis q.npy --grad g.npy --select basis", 0, "basis/rank"},
		{"ignore everything", "--basis q.npy --ignore basis --ignore vectors", 5, "nothing was checked"},
		{"require what cannot be decided", "--basis q.npy --require adapter/drift", 6, "undetermined"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := verify(t, dir, append([]string{"projection"}, strings.Fields(c.args)...)...)
			require.Equal(t, c.code, code, "stdout:\n%s\nstderr:\n%s", stdout, stderr)
			require.Contains(t, stdout+stderr, c.fragment)
			require.NotContains(t, stdout+stderr, "goroutine ", "a stack trace is no answer")
		})
	}
}

func TestUnreadableIsTheEnvironment(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Log("root reads every file; judged by the class of the error instead")
		require.Equal(t, 3, exitCode(os.ErrPermission))
		return
	}
	dir := workspace(t)
	require.NoError(t, os.Chmod(filepath.Join(dir, "q.npy"), 0))
	_, stderr, code := verify(t, dir, "projection", "--basis", "q.npy")
	require.Equal(t, 3, code, stderr)
}

func TestDemo(t *testing.T) {
	dir := t.TempDir()
	stdout, stderr, code := verify(t, dir, "demo")
	require.Equal(t, 0, code, stdout+stderr)
	require.Contains(t, stdout, "7 of 7 as expected")
	_, summary, _ := strings.Cut(stdout, "── what was found\n\n")
	require.Contains(t, summary, "  2  the same with a bug patched in: AGG-PAD-DENOMINATOR\n")
	require.Equal(t, 3, strings.Count(summary, ": nothing failed\n"))
	png, err := os.ReadFile(filepath.Join(dir, "projection_viz.png"))
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(png, []byte("\x89PNG")))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "the demo leaves the picture and nothing else")
	require.NotContains(t, stdout, os.TempDir())

	stdout, _, code = verify(t, dir, "demo", "--plot", "", "--keep", "data")
	require.Equal(t, 0, code, stdout)
	_, _, code = verify(t, dir, "projection", "--basis", filepath.Join("data", "q.npy"))
	require.Equal(t, 0, code)
	stdout, _, code = verify(t, dir, "dump", filepath.Join("data", "dumps", "pad_in_denominator"), "--profile", "trl-grpo@1.16")
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "AGG-PAD-DENOMINATOR")
}

// JSON follows the schema that the program prints, JUnit is XML with the numbers in the text, and equal runs give equal
// bytes outside the object run.
func TestReportForms(t *testing.T) {
	dir := workspace(t)
	printed, _, code := verify(t, dir, "explain", "--schema")
	require.Zero(t, code)
	require.Equal(t, string(report.Schema), printed)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(printed))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	require.NoError(t, compiler.AddResource("report.json", doc))
	schema, err := compiler.Compile("report.json")
	require.NoError(t, err)

	for _, args := range []string{
		"--basis q.npy --grad g.npy --projected g_projected.npy", "--basis q_column_scaled.npy", "--basis nan.npy", "--basis q.npy --adapter lora_held",
		"--basis one_dimensional.npy", "--basis truncated.npy", "--basis nowhere.npy", "--basis q.npy --ignore basis --ignore vectors", "--basis integer.npy --grad g.npy",
		"--basis q.npy --grad long_g.npy", "--basis q.npy --grad no_grads.safetensors",
	} {
		full := append([]string{"projection", "--format", "json"}, strings.Fields(args)...)
		a, _, code := verify(t, dir, full...)
		b, _, _ := verify(t, dir, full...)
		got, err := jsonschema.UnmarshalJSON(strings.NewReader(a))
		require.NoError(t, err, args)
		require.NoError(t, schema.Validate(got), args)
		require.EqualValues(t, json.Number(fmt.Sprint(code)), got.(map[string]any)["exit"], args)
		require.Equal(t, withoutRun(t, a), withoutRun(t, b), args)

		x, _, _ := verify(t, dir, append([]string{"projection", "--format", "junit"}, strings.Fields(args)...)...)
		dec := xml.NewDecoder(strings.NewReader(x))
		for {
			if _, err := dec.Token(); err == io.EOF {
				break
			} else {
				require.NoError(t, err, args)
			}
		}
		if code == 1 {
			require.Contains(t, x, "<failure", args)
		}
	}
	bad, err := jsonschema.UnmarshalJSON(strings.NewReader(`{"schema_version": 1}`))
	require.NoError(t, err)
	require.Error(t, schema.Validate(bad), "the schema must be able to fail")
}

// withoutRun cuts the last object, run, off the text of a report.
func withoutRun(t *testing.T, text string) string {
	t.Helper()
	i := strings.LastIndex(text, "\n  \"run\":")
	require.Positive(t, i)
	return text[:i]
}

func TestOutputFiles(t *testing.T) {
	dir := workspace(t)
	stdout, stderr, code := verify(t, dir, "projection", "--basis", "q.npy", "--grad", "g.npy", "--projected", "g_projected.npy", "--format", "json", "--output", "r.json",
		"--plot", "p.svg", "--orthonormalize", "again.npy")
	require.Zero(t, code, stderr)
	require.Empty(t, stdout, "the report goes to the file")
	for _, name := range []string{"r.json", "p.svg", "again.npy"} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Positive(t, info.Size())
	}
	svg, err := os.ReadFile(filepath.Join(dir, "p.svg"))
	require.NoError(t, err)
	for _, text := range []string{"Projection Components", "Basis Vector Index", "Absolute Projection Magnitude", "before", "after", "tolerance 1e-05", "14 PASS"} {
		require.Equal(t, 1, strings.Count(string(svg), ">"+text+"<"), text)
	}
	_, _, code = verify(t, dir, "projection", "--basis", "q.npy", "--grad", "g.npy", "--plot", "p.html")
	require.Equal(t, 1, code)
	html, err := os.ReadFile(filepath.Join(dir, "p.html"))
	require.NoError(t, err)
	for _, loads := range []string{"<script", "<link", "@import", " src=", "srcset", "url("} {
		require.NotContains(t, string(html), loads, "the page must load nothing")
	}
	require.Contains(t, string(html), "FAIL gradient/component: 0.0835, limit 1e-05")
	require.Equal(t, 1, strings.Count(string(html), ">Projection Components<")-strings.Count(string(html), "<title>Projection Components<"), "the picture on a page has no title of its own")

	// A repaired basis passes, in the type of the file.
	_, _, code = verify(t, dir, "projection", "--basis", "q_equal_columns.npy", "--orthonormalize", "repaired.npy")
	require.Equal(t, 1, code)
	stdout, _, code = verify(t, dir, "projection", "--basis", "repaired.npy")
	require.Zero(t, code, stdout)
	require.Contains(t, stdout, "(768, 11) float32")

	// What was there stays when the run fails before the report.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "old.txt"), []byte("old"), 0o666))
	_, _, code = verify(t, dir, "projection", "--basis", "truncated.npy", "--output", "old.txt")
	require.Equal(t, 4, code)
	old, err := os.ReadFile(filepath.Join(dir, "old.txt"))
	require.NoError(t, err)
	require.Equal(t, "old", string(old))
	left, err := filepath.Glob(filepath.Join(dir, ".*tmp*"))
	require.NoError(t, err)
	require.Empty(t, left, "no half-written file stays behind")
}

// The command that repeats a run has its flags as they were given: a flag that was turned off stays off.
func TestRepeatTurnsOff(t *testing.T) {
	args := []string{"vram", "--model", "gpt-j-6b", "--int8", "--lora-r", "16", "--targets", "q_proj", "--batch", "4", "--seq", "424", "--limit", "18GB", "--checkpointing=false"}
	stdout, stderr, code := verify(t, t.TempDir(), args...)
	require.Equal(t, 1, code, stderr)
	require.Regexp(t, `repeat +verify vram .*--checkpointing=false --int8 `, stdout)
}

// The file - is stdout.
func TestOutputDash(t *testing.T) {
	dir := workspace(t)
	stdout, _, code := verify(t, dir, "projection", "--basis", "q.npy", "--format", "json", "-o", "-")
	require.Zero(t, code)
	require.True(t, json.Valid([]byte(stdout)))
	require.NoFileExists(t, filepath.Join(dir, "-"))
}

func TestBaseline(t *testing.T) {
	dir := workspace(t)
	_, _, code := verify(t, dir, "projection", "--basis", "q.npy", "--grad", "g_projected.npy", "--format", "json", "-o", "old.json")
	require.Zero(t, code)
	require.NoError(t, os.Rename(filepath.Join(dir, "q_column_scaled.npy"), filepath.Join(dir, "q.npy")))
	stdout, _, code := verify(t, dir, "projection", "--basis", "q.npy", "--grad", "g_projected.npy", "--baseline", "old.json")
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "since baseline: basis/orthonormal q.npy was PASS, is FAIL")
	_, stderr, code := verify(t, dir, "projection", "--basis", "q.npy", "--baseline", "text.txt")
	require.Equal(t, 4, code, stderr)
}

func TestOtherCommands(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args, fragment string
		code           int
	}{
		{"list", "basis/orthonormal", 0},
		{"explain basis/orthonormal", "max|QᵀQ − I| < tol", 0},
		{"explain dump", "∂loss/∂logp_new", 0},
		{"explain h3a", "optimiser's leak", 0},
		{"explain clip.low", "lower bound of the ratio", 0},
		{"explain adv.ddof", "ADV-DDOF", 0},
		{"explain clip.lwo", `did you mean "clip.low"?`, 2},
		{"explain basis/orthonormall", "basis/orthonormal", 2},
		{"explain", "id of a check", 2},
		{"explain xyzzyxyzzy", "(verify list prints the checks", 2},
		{"dump -", "is not read from stdin", 2},
		{"faults --suite projection --healthy 20", "faults caught", 0},
		{"faults --suite dumps", "vram or dump", 2},
		{"faults --left-out", "why no plant", 0},
		{"faults --healthy -1", "--healthy", 2},
		{"--version", "verify 0.", 0},
		{"--version --json", `"report_schema": 1`, 0},
		{"completion bash", "bash completion", 0},
		{"completion tcsh", `unknown shell "tcsh"; want one of bash, fish, powershell, zsh`, 2},
		{"completion", "takes the name of a shell", 2},
		{"dump [", "syntax error in pattern", 2},
		{"projecton", "projection", 2},
		{"", "Usage", 2},
		{"projection --help", "--orthonormalize", 0},
		{"help projection", "--orthonormalize", 0},
		{"help", "Available Commands", 0},
		{"help projecton", `unknown command "projecton"; did you mean "projection"?`, 2},
		{"help projection list", `got "list" too`, 2},
		{"xyzzy", `unknown command "xyzzy" (verify --help)`, 2},
		{"list --xyzzy", "unknown flag: --xyzzy (verify list --help)", 2},
		{"--json", "--json goes with --version", 2},
		{"list x", `list takes no arguments, got "x"`, 2},
	} {
		stdout, stderr, code := verify(t, dir, strings.Fields(c.args)...)
		require.Equal(t, c.code, code, "%s\n%s%s", c.args, stdout, stderr)
		require.Contains(t, stdout+stderr, c.fragment, c.args)
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{"1GiB": 1 << 30, "2MB": 2e6, "17": 17, "1.5KiB": 1536, "3 GB": 3e9, "8B": 8} {
		got, err := parseBytes(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "x", "-1", "0", "NaN", "1e30GB", "GiB", "1 GX"} {
		_, err := parseBytes(text)
		require.Error(t, err, text)
	}
}

// A bug of ours ends in exit code 3, also when it shows in another goroutine.
func TestPanicIsInternal(t *testing.T) {
	_, err := interruptible(t.Context(), func() (int, error) { panic("a bug") })
	require.ErrorContains(t, err, "internal error: a bug")
	require.Equal(t, 3, exitCode(err))
	v, err := interruptible(t.Context(), func() (int, error) { return 7, nil })
	require.NoError(t, err)
	require.Equal(t, 7, v)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err = interruptible(ctx, func() (int, error) { select {} })
	require.Equal(t, 130, exitCode(err))
}

// A line that begins with "::" is a command to the runner of a workflow, and an argument must not make one.
func TestArgumentsMakeNoWorkflowCommands(t *testing.T) {
	for _, args := range [][]string{{"checkpoint", "x\n::error::y"}, {"dump", "x\n::error::y"}, {"x\n::error::y"}, {"vram", "--model", "x\n::error::y"}} {
		stdout, stderr, code := verify(t, t.TempDir(), args...)
		require.NotZero(t, code)
		for line := range strings.Lines(stdout + stderr) {
			require.False(t, strings.HasPrefix(strings.TrimSpace(line), "::"), "%q", line)
		}
	}
}
