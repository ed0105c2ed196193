package main

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/verify/report"
)

// dumpForm is the JSON form of a report, as far as the tests look at it.
type dumpForm struct {
	Exit    int
	Error   string
	Lines   []string
	Lists   []report.Section
	Results []dumpResult
}

type dumpResult struct {
	Check, Verdict, Reason, Formula, Where, Fix, Repeat string
	Measured, Limit                                     any
	Compared                                            int
	Class                                               []string
	Steps                                               *struct {
		Judged, Bad int
		First       *int `json:"first_bad"`
	}
	Explanations []struct {
		Fault, Title, Evidence string
		Lead                   bool
		Rows                   []string
		Options                []struct{ Option, Value, Declared, Origin string }
	}
}

// find returns the result of a check, nil if there is none.
func (f *dumpForm) find(check string) *dumpResult {
	for i := range f.Results {
		if f.Results[i].Check == check {
			return &f.Results[i]
		}
	}
	return nil
}

func (f *dumpForm) with(verdict string) (list []*dumpResult) {
	for i := range f.Results {
		if f.Results[i].Verdict == verdict {
			list = append(list, &f.Results[i])
		}
	}
	return list
}

func dumpJSON(t *testing.T, dir string, args ...string) dumpForm {
	t.Helper()
	stdout, stderr, code := verify(t, dir, append([]string{"dump", "--format", "json"}, args...)...)
	var f dumpForm
	require.NoError(t, json.Unmarshal([]byte(stdout), &f), "%s%s", stdout, stderr)
	require.Equal(t, code, f.Exit)
	return f
}

// One exit code and one fragment of what is printed for each way to call the command, on runs of real trainers.
func TestDumpCases(t *testing.T) {
	clean, pads, detached := trlRuns+"/clean/grpo", trlRuns+"/faulty/b_pad_in_denominator", trlRuns+"/faulty/e_ratio_detached"
	ddof := goldenRuns + "/trl-grpo/faulty/adv_std_ddof0"
	warns := goldenRuns + "/trl-grpo/faulty/group_identical --ignore scalars --ignore masks/duplicates"
	for _, c := range []struct {
		args     string
		code     int
		fragment string // of stdout or stderr
	}{
		{clean + " --profile trl-grpo@1.16", 0, "nothing failed"},
		{clean, 0, "profile: trl-grpo@1.16 (the files say trl 1.16.0 grpo)"},
		{clean + " --profile none", 0, "profiles that fit what was searched: "},
		{clean + " --infer", 0, "profiles that can be configured to what was searched: trl-grpo@"}, // kl.beta 0.04 is no default
		{ddof + " --infer", 0, "no profile has all the options that were found"},
		{clean + "/*_mb_*.safetensors --profile trl-grpo@1.16", 0, "nothing failed"},
		{clean + " " + clean + "/step_0001_mb_0.safetensors", 0, "nothing failed"},
		{pads + " --profile trl-grpo@1.16", 1, "AGG-PAD-DENOMINATOR: the mean divides by the padded width"},
		{pads, 1, "AGG-PAD-DENOMINATOR"},
		{detached + " --profile trl-grpo@1.16", 1, "gradient/dlogp"},
		{detached + " --profile trl-grpo@1.16 --ignore gradient", 0, "nothing failed"},
		{clean + " --first-step --profile trl-grpo@1.16", 0, "first_step/ratio"},
		{detached + " --first-step --profile trl-grpo@1.16 --select first_step", 1, "first_step/gradient"},

		// A convention is information where nothing was declared.
		{ddof + " --profile trl-grpo@1.16", 1, "adv.ddof 0 where trl-grpo@1.16 says 1"},
		{ddof + " --profile trl-grpo@1.16 --set adv.ddof=0 -v", 0, "adv.ddof 0, by --set, not 1, by trl-grpo@1.16"},
		{ddof + " --infer", 0, "adv.ddof=0"},

		// Warnings.
		{warns + " --profile trl-grpo@1.16", 0, "SCORES-CONSTANT"},
		{warns + " --profile trl-grpo@1.16 --fail-on warn", 1, "SCORES-CONSTANT"},
		{goldenRuns + "/trl-grpo/faulty/group_identical --ignore scalars --profile trl-grpo@1.16", 1, "GROUP-IDENTICAL"},

		// What is asked for by name.
		{clean + " --profile trl-grpo@1.16 --require logp/new", 6, "asked for by name, but without logits"},
		{clean + " --profile trl-grpo@1.16 --require logp", 0, "logp/range"},
		{clean + " --profile trl-grpo@1.16 --select reward", 0, "reward/scores"},
		{clean + " --profile trl-grpo@1.16 --select gae", 6, "gae/advantage"},
		{clean + " --profile trl-grpo@1.16 --require aggregate/loss", 0, "nothing failed"},
		{clean + " --profile trl-grpo@1.16 --strict", 6, "not seen"},
		{clean + " --profile trl-grpo@1.16 --select first_step", 6, "nothing it applies to"},
		{clean + " --ignore masks --ignore reward --ignore logp --ignore agreement --ignore kl --ignore advantage --ignore token_loss --ignore aggregate --ignore gradient --ignore scalars --ignore across", 5, "nothing was checked"},

		// Steps.
		{clean + " --profile trl-grpo@1.16 --steps 2", 0, "1 step"},
		{clean + " --profile trl-grpo@1.16 --steps 2..", 0, "2 steps"},
		{clean + " --profile trl-grpo@1.16 --steps 1,3..9", 0, "2 steps"},
		{clean + " --steps 7..9", 2, "none of these, but 3 from 1 to 3"},
		{clean + " --steps 3..2", 2, "3 is after 2"},
		{clean + " --steps x", 2, "want A..B"},
		{clean + " --steps 1,,2", 2, "want A..B"},
		{clean + " --steps -1", 2, "want A..B"},
		{pads + " --profile trl-grpo@1.16 --first-failure", 1, " 1 step "},

		// Usage.
		{"", 2, "takes files, folders or globs"},
		{"nowhere", 2, "nowhere"},
		{"nowhere/*.safetensors", 2, "nowhere"},
		{clean + " --profile trl-grpo", 0, "names no version"},
		{clean + " --profile trl-gpro@1.16", 2, `did you mean "trl-grpo`},
		{clean + " --set adv.ddof", 2, "want OPTION=VALUE"},
		{clean + " --set adv.ddof=7", 2, "adv.ddof"},
		{clean + " --set adv.dof=1", 2, `did you mean "adv.ddof"`},
		{clean + " --set adv.ddof=1 --set adv.ddof=0", 2, "given twice"},
		{clean + " --set num_mini_batches=x", 2, "want a whole number"},
		{clean + " --set num_minibatches=2", 2, `did you mean "num_mini_batches"`},
		{clean + " --select advantage/grup", 2, "advantage/group"},
		{clean + " --select advantage/group --format yaml", 2, "human, json, junit"},
		{clean + " --fail-on nothing", 2, "fail or warn"},
		{clean + " --frist-step", 2, "--first-step"},
		{clean + " --config nowhere.txt", 2, "nowhere.txt"},
		{clean + " --max-uncompressed much", 2, "--max-uncompressed"},
		{clean + " -o nowhere/r.txt", 2, "there is no folder"},
		{clean + " -o " + clean + "/step_0001_mb_0.safetensors", 2, "is an input of this run"},
	} {
		t.Run(c.args, func(t *testing.T) {
			if testing.Short() && strings.Contains(c.args, "--infer") {
				t.Skip("a search takes seconds")
			}
			t.Parallel()
			stdout, stderr, code := verify(t, ".", append([]string{"dump", "-v"}, strings.Fields(c.args)...)...)
			require.Equal(t, c.code, code, "stdout:\n%s\nstderr:\n%s", stdout, stderr)
			require.Contains(t, stdout+stderr, c.fragment)
			require.NotContains(t, stdout+stderr, "goroutine ")
			if code == 2 {
				require.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
			}
		})
	}
}

// Files of options: what they declare is printed, and what is wrong with them is an error of usage.
func TestDumpConfig(t *testing.T) {
	clean, err := filepath.Abs(trlRuns + "/clean/grpo")
	require.NoError(t, err)
	dir := t.TempDir()
	for _, c := range []struct {
		name, text string
		code       int
		fragment   string
	}{
		{"lines", "clip.high = 0.28\nadv.ddof = 1 # sample\n", 0, "adv.ddof=1 → adv.ddof=1"},
		{"JSON", `{"options": {"clip": {"high": 0.28}}}`, 0, "options taken from the configuration"},
		{"a framework's names", "framework = trl-grpo\nepsilon_high = 0.28\n", 0, "epsilon_high=0.28 → clip.high=0.28"},
		{"a framework's names, one mistyped", "framework = trl-grpo\nepsilon_hihg = 0.28\n", 6, "options of --config that nobody knows: epsilon_hihg (nearest: epsilon_high)"},
		{"against the dump", "clip.high = 0.5\n", 1, "clip.high 0.5, by clip.high=0.5"},
		{"unknown name", "adv.dof = 1\n", 2, `did you mean "adv.ddof"`},
		{"illegal value", "adv.ddof = 7\n", 2, "adv.ddof"},
		{"twice", "adv.ddof = 1\nadv.ddof = 1\n", 2, "given twice"},
		{"YAML", "adv:\n  ddof: 1\n", 2, "named .yaml"},
		{"broken JSON", `{"adv.ddof": 1`, 2, "config"},
		{"a NUL", "adv.ddof = 1\x00\n", 2, "NUL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(dir, "config.txt")
			require.NoError(t, os.WriteFile(file, []byte(c.text), 0o666))
			stdout, stderr, code := verify(t, dir, "dump", clean, "--profile", trlProfile, "--config", "config.txt", "-v")
			require.Equal(t, c.code, code, "%s%s", stdout, stderr)
			require.Contains(t, stdout+stderr, c.fragment)
		})
	}
}

// The printed command finds the same again: verdict, place, numbers and explanations, also where the explanation rests on
// several steps, and on a run of many.
func TestDumpRepeats(t *testing.T) {
	dir := t.TempDir()
	many := filepath.Join(dir, "many steps") // a name to be quoted
	manySteps(t, many, 20, func(d *dumpText) {
		for i := range d.tensors["advantages"].Data {
			d.tensors["advantages"].Data[i] *= -1
		}
	})
	runs := [][]string{
		{many, "--profile", trlProfile},
		{many, "--profile", trlProfile, "--steps", "5..15"},
		{many, "--profile", trlProfile, "--first-failure"},
	}
	under := map[string]string{
		"trl-grpo/faulty/loss_not_divided_by_accumulation": trlProfile, "trl-grpo/faulty/clip_max_for_min": trlProfile, "trl-grpo/faulty/group_identical": trlProfile,
		"trl-grpo/faulty/mask_excludes_eos": trlProfile, "trl-grpo/faulty/cispo_through_clip": trlProfile, "trl-grpo/faulty/temperature_missing": trlProfile,
		"trl-ppo/faulty/value_clip_min": "trl-ppo@1.12", "verl/faulty/local_denominators": "verl-ppo@0.9",
	}
	for _, run := range slices.Sorted(maps.Keys(under)) {
		runs = append(runs, []string{goldenRuns + "/" + run, "--profile", under[run]})
	}
	runs = append(runs, []string{goldenRuns + "/trl-grpo/faulty/clip_max_for_min"})
	if testing.Short() {
		runs = runs[:4]
	}
	for i, args := range runs {
		if i%cases.Every != 0 {
			continue
		}
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			first := dumpJSON(t, ".", args...)
			looked := 0
			for _, r := range first.Results {
				if r.Verdict != "FAIL" && r.Verdict != "CONVENTION" && r.Verdict != "WARN" {
					continue
				}
				if looked++; looked > 2 {
					break
				}
				words := shellWords(t, r.Repeat)
				require.Equal(t, "verify", words[0])
				again := dumpJSON(t, ".", words[2:]...)
				found := again.find(r.Check)
				require.NotNil(t, found, r.Repeat)
				require.Equal(t, []any{r.Verdict, r.Where, r.Measured, r.Limit, r.Explanations, r.Class, r.Fix},
					[]any{found.Verdict, found.Where, found.Measured, found.Limit, found.Explanations, found.Class, found.Fix}, "%s\n%s\n%s", r.Repeat, r.Reason, found.Reason)
				require.Equal(t, r.Steps.First, found.Steps.First, r.Repeat)
			}
			require.NotZero(t, looked, "finds nothing to repeat")
		})
	}
}

// shellWords splits a command line at white space, but not within single quotes.
func shellWords(t *testing.T, s string) (words []string) {
	t.Helper()
	var b strings.Builder
	quoted, some := false, false
	for _, c := range s {
		switch {
		case c == '\'':
			quoted, some = !quoted, true
		case c == ' ' && !quoted:
			if some {
				words = append(words, b.String())
			}
			b.Reset()
			some = false
		default:
			b.WriteRune(c)
			some = true
		}
	}
	require.False(t, quoted, s)
	return append(words, b.String())
}

// What a failure must say: the formula, the place, both numbers, the reason, the fix and the command to repeat it, each once
// and none of them long.
func TestDumpFailuresAreComplete(t *testing.T) {
	runs := faultyRuns(t)
	n, byProfile, byRun := 0, 0, 0
	for i, run := range slices.Sorted(maps.Keys(runs)) {
		if i%3 != 0 { // the golden tests of package dump judge all of them
			continue
		}
		profile := runs[run]
		n++
		f := dumpJSON(t, ".", filepath.Join(goldenRuns, run), "--profile", profile)
		for _, r := range append(f.with("FAIL"), f.with("CONVENTION")...) {
			where := run + " " + r.Check
			require.NotEmpty(t, r.Formula, where)
			require.NotEmpty(t, r.Reason, where)
			require.NotContains(t, r.Reason, r.Formula, where)
			require.NotEmpty(t, r.Where, where)
			require.NotEmpty(t, r.Fix, where)
			require.Contains(t, r.Repeat, "verify dump "+goldenRuns+"/"+run+" --profile "+profile+" --select "+r.Check, where)
			require.Less(t, len(r.Reason), 400, where)
			if r.Measured != nil {
				require.Contains(t, r.Where, "got ", where)
				require.Contains(t, r.Where, "want ", where)
			}
			require.NotNil(t, r.Steps, where)
			require.Positive(t, r.Steps.Bad, where)
			require.NotNil(t, r.Steps.First, where)
			for _, e := range r.Explanations {
				require.Less(t, len(e.Evidence), 160, "%s: %s", where, e.Evidence)
				if r.Verdict == "CONVENTION" && e.Fault == "" {
					require.NotEmpty(t, e.Options, where)
				}
			}
			if r.Verdict == "CONVENTION" {
				o := r.Explanations[0].Options
				require.NotEmpty(t, o, where)
				require.NotEqual(t, o[0].Value, o[0].Declared, where)
				require.NotContains(t, r.Fix, "--set", "%s: it is not known that the other was meant", where)
				for _, o := range o {
					if o.Origin == profile || o.Origin == "" { // the run has not said what it meant
						require.Contains(t, r.Fix, o.Option+"="+o.Value, where)
						require.Contains(t, r.Fix, "--config", where)
						byProfile++
					} else {
						require.NotContains(t, r.Fix, o.Option+"="+o.Value, where)
						byRun++
					}
				}
			}
		}
		if n > 6 {
			continue
		}
		text, _, _ := verify(t, ".", "dump", filepath.Join(goldenRuns, run), "--profile", profile, "-q")
		for _, line := range strings.Split(text, "\n") {
			require.Less(t, len([]rune(line)), 360, "%s: a line nobody reads:\n%s", run, line)
			require.NotContains(t, line, "e-46", "half the smallest float32 is 0 to a reader")
		}
	}
	require.GreaterOrEqual(t, n, 10)
	require.Positive(t, byProfile)
	require.Positive(t, byRun)
}

// faultyRuns maps some broken runs of real trainers to their profiles.
func faultyRuns(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(goldenRuns, "EXPECT.json"))
	require.NoError(t, err)
	var all map[string]struct{ Expect, Profile string }
	require.NoError(t, json.Unmarshal(text, &all))
	runs := map[string]string{}
	for name, e := range all {
		if e.Expect != "clean" {
			runs[name] = e.Profile
		}
	}
	return runs
}

// explain knows checks, bugs, options that are bugs elsewhere, and rows of the catalogue.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		id       string
		code     int
		fragment string
	}{
		{"advantage/group", 0, "A = (r − c)/(std + adv.eps)"},
		{"advantage/group", 0, "V16"},
		{"aggregate/loss", 0, "AGG-PAD-DENOMINATOR"},
		{"AGG-GA-MISSING", 0, "divide by gradient_accumulation_steps once"},
		{"agg-ga-missing", 0, "agg.div_ga"},
		{"ADV-DDOF", 0, "adv.ddof"},
		{"P012", 0, "AGG-GA-MISSING"},
		{"p189", 0, "WHITEN-DDOF"},
		{"FACTOR", 0, "common factor"},
		{"H3a", 0, "optimiser's leak"},
		{"loss_agg_mode", 0, "token-mean               → agg.kind=token, where loss_mode is not sapo"},
		{"P9999", 2, "no code P9999"},
		{"AGG-GA-MISING", 2, `did you mean "AGG-GA-MISSING"?`},
		{"advantage/grup", 2, `did you mean "advantage/group"?`},
		{"", 2, "did you mean"},
	} {
		stdout, stderr, code := verify(t, ".", "explain", c.id)
		require.Equal(t, c.code, code, "%s: %s%s", c.id, stdout, stderr)
		require.Contains(t, stdout+stderr, c.fragment, c.id)
	}
	stdout, _, _ := verify(t, ".", "explain", "AGG-GA-MISSING")
	require.Equal(t, 1, strings.Count(stdout, "cause:"), "once, however many checks look for it")
	list, _, _ := verify(t, ".", "list")
	for _, id := range []string{"masks/position", "advantage/group", "first_step/ratio", "basis/orthonormal"} {
		require.Contains(t, list, id)
	}
}

// NaN where a trainer uses a number is a failure; where it is masked, at most a remark.
func TestDumpNaN(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"logp_new", "logp_old", "token_loss", "advantages", "kl", "dlogp", "entropy"} {
		if i%cases.Every != 0 {
			continue
		}
		in, out := filepath.Join(dir, name+" in"), filepath.Join(dir, name+" out")
		runOf(t, trlRuns+"/clean/grpo", in, func(d *dumpText) {
			i := d.cell(1)
			if len(d.tensors[name].Shape) == 1 {
				i = 0
			}
			d.tensors[name].Data[i] = math.NaN()
		})
		f := dumpJSON(t, ".", in, "--profile", trlProfile)
		require.Equal(t, 1, f.Exit, "%s: NaN in the mask", name)
		if len(readDump(t, trlRuns+"/clean/grpo/step_0001_mb_0.safetensors").tensors[name].Shape) == 1 {
			continue
		}
		runOf(t, trlRuns+"/clean/grpo", out, func(d *dumpText) { d.tensors[name].Data[d.cell(0)] = math.NaN() })
		f = dumpJSON(t, ".", out, "--profile", trlProfile)
		if name == "dlogp" { // the gradient is 0 there
			require.Equal(t, 1, f.Exit)
			continue
		}
		require.Zero(t, f.Exit, "%s: NaN outside the mask: %v", name, f.with("FAIL"))
		require.Empty(t, f.with("FAIL"))
	}
}

// A clean run is two lines: what agrees with what, and how much of what can go wrong would show.
func TestDumpCleanIsTwoLines(t *testing.T) {
	stdout, _, code := verify(t, ".", "dump", trlRuns+"/clean/grpo")
	require.Zero(t, code)
	require.Regexp(t, `^✓ \S+: \d+ checks on 3 steps agree with TRL 1\.16\.0`, stdout)
	require.Equal(t, 2, strings.Count(stdout, "\n"), stdout)
	require.Contains(t, stdout, "bugs that this algorithm can have would show")
	quiet, _, _ := verify(t, ".", "dump", trlRuns+"/clean/grpo", "-q")
	require.Contains(t, quiet, "would show")
}

// One bug is one finding, with its place, both numbers, both expressions and what it breaks downstream; JSON has the same.
func TestDumpOneCauseIsOneFinding(t *testing.T) {
	stdout, _, code := verify(t, ".", "dump", trlRuns+"/faulty/b_pad_in_denominator")
	require.Equal(t, 1, code)
	require.Equal(t, 1, strings.Count(stdout, "AGG-PAD-DENOMINATOR  the mean divides by the padded width"), stdout)
	for _, text := range []string{"loss, step 1, micro-batch 1", "got ", "right ", "yours   (loss * mask).mean(-1)\n", "TRL     (loss * mask).sum(-1) / mask.sum(-1)\n",
		"seen in aggregate/loss, gradient/dlogp", "next    verify explain AGG-PAD-DENOMINATOR"} {
		require.Contains(t, stdout, text)
	}
	text, _, _ := verify(t, ".", "dump", trlRuns+"/faulty/b_pad_in_denominator", "--format", "json")
	var f struct {
		Headline, Coverage string
		Findings           []struct {
			Name, Yours, Theirs string
			SeenIn              []string `json:"seen_in"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &f))
	require.Len(t, f.Findings, 1)
	require.Equal(t, []string{"aggregate/loss", "gradient/dlogp"}, f.Findings[0].SeenIn)
	require.Contains(t, f.Headline, "AGG-PAD-DENOMINATOR, from step 1. exit 1")
	require.Contains(t, f.Coverage, "would show")
}
