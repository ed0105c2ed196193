package main

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/verify/report"
)

// JSON follows the schema, JUnit is XML, and equal runs give equal bytes outside the object run.
func TestDumpForms(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(report.Schema)))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	require.NoError(t, compiler.AddResource("report.json", doc))
	schema, err := compiler.Compile("report.json")
	require.NoError(t, err)
	for i, args := range []string{
		trlRuns + "/clean/grpo --select advantage", trlRuns + "/clean/grpo --profile trl-grpo@1.16", trlRuns + "/faulty/b_pad_in_denominator --first-step --profile trl-grpo@1.16",
		goldenRuns + "/trl-grpo/faulty/loss_not_divided_by_accumulation --profile trl-grpo@1.16 --set kl.beta=0.04", goldenRuns + "/trl-grpo/faulty/old_logp_zero --profile trl-grpo@1.16",
		goldenRuns + "/trl-grpo/faulty/group_identical --profile trl-grpo@1.16", goldenRuns + "/verl/faulty/value_loss_no_half --require gae/returns --profile verl-ppo@0.9",
		"nowhere", trlRuns + "/clean/grpo --profile nobody", trlRuns,
	} {
		if i%cases.Every != 0 {
			continue
		}
		full := append([]string{"dump", "--format", "json"}, strings.Fields(args)...)
		a, _, code := verify(t, ".", full...)
		b, _, _ := verify(t, ".", full...)
		got, err := jsonschema.UnmarshalJSON(strings.NewReader(a))
		require.NoError(t, err, "%s: %s", args, a)
		require.NoError(t, schema.Validate(got), args)
		require.Equal(t, withoutRun(t, a), withoutRun(t, b), args)
		if code >= 2 && code <= 4 {
			require.Contains(t, a, `"error": `, args)
		}
		x, _, again := verify(t, ".", append([]string{"dump", "--format", "junit"}, strings.Fields(args)...)...)
		require.Equal(t, code, again)
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
}

// What the JSON form has of a run beside its numbers.
func TestDumpJSON(t *testing.T) {
	f := dumpJSON(t, ".", goldenRuns+"/trl-grpo/faulty/adv_std_ddof0", "--profile", trlProfile)
	r := f.find("advantage/group")
	require.Equal(t, "CONVENTION", r.Verdict)
	require.Equal(t, []int{4, 4, 1}, []int{r.Steps.Judged, r.Steps.Bad, *r.Steps.First})
	require.Contains(t, r.Formula, "adv.eps")
	require.Equal(t, []string{"ADV-DDOF"}, r.Class)
	o := r.Explanations[0].Options[0]
	require.Equal(t, []string{"adv.ddof", "0", "1", trlProfile}, []string{o.Option, o.Value, o.Declared, o.Origin})
	require.Equal(t, []string{"P189"}, r.Explanations[0].Rows)
	require.NotEmpty(t, f.Lists)
	require.Contains(t, f.Lists[0].Items[0], "trl-grpo@1.16")
	healthy := f.find("kl/token")
	require.Equal(t, []int{4, 0}, []int{healthy.Steps.Judged, healthy.Steps.Bad})
	require.Nil(t, healthy.Steps.First)
	require.Equal(t, "FAIL", dumpPtr(dumpJSON(t, ".", trlRuns+"/faulty/b_pad_in_denominator")).find("aggregate/loss").Verdict)
}

func dumpPtr(f dumpForm) *dumpForm { return &f }

// Without -v long lists are counted, with -q there is only what did not pass; -v has causes and rows.
func TestDumpLoudness(t *testing.T) {
	run := goldenRuns + "/trl-grpo/faulty/loss_not_divided_by_accumulation"
	plain, _, _ := verify(t, ".", "dump", run, "--profile", trlProfile)
	require.NotContains(t, plain, "kl.beta 0.04, by")
	require.NotContains(t, plain, "P012")
	require.LessOrEqual(t, strings.Count(plain, "\n"), 24, "a screen")
	require.Contains(t, plain, "bugs that this algorithm can have would show")
	require.Contains(t, plain, "seen in aggregate/loss, gradient/dlogp")
	for line := range strings.Lines(plain) {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 81, line)
	}
	require.True(t, strings.HasSuffix(plain, "AGG-GA-MISSING, from step 1 (1 CONVENTION). exit 1: a check failed\n"), plain)
	loud, _, _ := verify(t, ".", "dump", run, "--profile", trlProfile, "-v")
	for _, text := range []string{"kl.beta 0.04, by beta=0.04 (the dump), not 0, by " + trlProfile, "P012", "catalogue", "step_0004_mb_1"} {
		require.Contains(t, loud, text)
	}
	quiet, _, _ := verify(t, ".", "dump", run, "--profile", trlProfile, "-q")
	require.NotContains(t, quiet, "PASS  ")
	require.Contains(t, quiet, "AGG-GA-MISSING")
	require.Contains(t, quiet, "bugs that this algorithm can have would show", "the hint stays")
	require.Less(t, len(quiet), len(plain))
}

// A report to a file is whole or not there, and the screen stays empty.
func TestDumpOutput(t *testing.T) {
	clean, err := filepath.Abs(trlRuns + "/clean/grpo")
	require.NoError(t, err)
	dir := t.TempDir()
	stdout, _, code := verify(t, dir, "dump", clean, "--format", "json", "-o", "r.json")
	require.Zero(t, code)
	require.Empty(t, stdout)
	text, err := os.ReadFile(filepath.Join(dir, "r.json"))
	require.NoError(t, err)
	require.True(t, json.Valid(text))
	stdout, _, code = verify(t, dir, "dump", clean, "--baseline", "r.json")
	require.Zero(t, code)
	require.Contains(t, stdout, "since baseline: nothing changed")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "old.txt"), []byte("old"), 0o666))
	_, _, code = verify(t, dir, "dump", "nowhere", "-o", "old.txt")
	require.Equal(t, 2, code)
	old, err := os.ReadFile(filepath.Join(dir, "old.txt"))
	require.NoError(t, err)
	require.Equal(t, "old", string(old))
	left, err := filepath.Glob(filepath.Join(dir, ".*tmp*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// Neither token ids nor prompts are in a redacted report, in any form.
func TestDumpRedact(t *testing.T) {
	const secret = 48213 // no number of a report begins like this
	dir := t.TempDir()
	for i, run := range []string{"trl-grpo/faulty/temperature_missing", "trl-grpo/faulty/kl_sign"} {
		if i%cases.Every != 0 {
			continue
		}
		to := filepath.Join(dir, filepath.Base(run))
		runOf(t, filepath.Join(goldenRuns, run), to, func(d *dumpText) {
			for _, name := range []string{"response_ids", "input_ids"} {
				if x := d.tensors[name]; x != nil {
					for i := range x.Data {
						if x.Data[i] != 1 { // end of sequence
							x.Data[i] = secret
						}
					}
				}
			}
			d.options()["system_prompt"] = "the secret prompt"
			d.meta["prompt"] = "the secret prompt"
		})
		shown := false
		for _, form := range report.Formats {
			args := []string{"dump", to, "--profile", trlProfile, "--format", form, "-v"}
			plain, _, code := verify(t, ".", args...)
			shown = shown || strings.Contains(plain, "48213")
			redacted, _, again := verify(t, ".", append(args, "--redact")...)
			require.Equal(t, code, again)
			require.NotContains(t, redacted, "48213", "%s in %s", run, form)
			require.NotContains(t, redacted, "secret prompt")
			require.NotContains(t, plain, "secret prompt")
		}
		require.True(t, shown, "%s: without --redact the ids show, or this proves nothing", run)
	}
}
