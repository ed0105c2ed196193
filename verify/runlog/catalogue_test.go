package runlog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/bug"
	"plumbline/verify/runlog"
)

// Messages that PyTorch raised (golden/gen/logs/texts.py): the fault that they stand for is the only finding.
func TestTextsOfPyTorch(t *testing.T) {
	const folder = "testdata/texts"
	table, err := os.ReadFile(filepath.Join(folder, "texts.txt"))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(table)), "\n")
	require.GreaterOrEqual(t, len(lines), 20)
	for _, line := range lines {
		row := strings.Split(line, "\t")
		require.Len(t, row, 3, line)
		require.Equal(t, []string{row[1]}, judge(t, runlog.Options{}, filepath.Join(folder, row[0])).top, line)
	}
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, entries, len(lines)+1, "texts.txt has a line for each log")
}

// Every symptom stands by its id in a test of this package or names a log of testdata.
func TestEverySymptomIsPlanted(t *testing.T) {
	var all strings.Builder
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	for _, name := range append(files, "testdata/rows/rows.txt", "testdata/texts/texts.txt") {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		all.Write(text)
	}
	for _, s := range bug.Symptoms() {
		if !regexp.MustCompile(`["\t]` + regexp.QuoteMeta(s.ID) + `["\t]`).MatchString(all.String()) {
			t.Errorf("%s stands in no test", s.ID)
		}
	}
}

// A first ratio that is not 1 has causes that no log tells apart; padding on the wrong side is named beside it.
func TestFirstRatioMayBePadding(t *testing.T) {
	found := judge(t, runlog.Options{}, "testdata/rows/H13c-sampler").report.Brief.Findings
	require.Equal(t, "RATIO-FIRST", found[0].Name)
	require.Equal(t, []string{"H13c"}, found[0].Or)
}

// The page says how many rows there are.
func TestPageCountsTheRows(t *testing.T) {
	page, err := os.ReadFile("../../docs/log.md")
	require.NoError(t, err)
	table, err := os.ReadFile("testdata/rows/rows.txt")
	require.NoError(t, err)
	texts, err := os.ReadFile("testdata/texts/texts.txt")
	require.NoError(t, err)
	count := func(text []byte) int { return strings.Count(strings.TrimSpace(string(text)), "\n") + 1 }
	require.Contains(t, string(page), fmt.Sprintf("%d logs of the trainers of this project", count(table)))
	require.Contains(t, string(page), fmt.Sprintf("%d messages", count(texts)))
}

// Prompts that are the same in every step, as verl logs their lengths: told from prompts of one length, from few lines, and from data of one batch.
func TestSamePrompts(t *testing.T) {
	verl := func(n int, mean, low, high, epoch func(i int) float64) judged {
		return text(t, "v.log", lines(n, func(i int) string {
			return fmt.Sprintf("step:%d - actor/pg_loss:%g - actor/grad_norm:0.5 - critic/score/mean:%g - prompt_length/mean:%g - prompt_length/max:%g - prompt_length/min:%g - training/epoch:%g", i+1, .01*wave(i), .3+.01*wave(i), mean(i), high(i), low(i), epoch(i))
		}))
	}
	always := func(v float64) func(int) float64 { return func(int) float64 { return v } }
	moves := func(i int) float64 { return 71.25 + wave(i) }
	require.Equal(t, []string{"H13b"}, verl(12, always(71.25), always(40), always(130), always(0)).top)
	require.Empty(t, verl(12, moves, always(40), always(130), always(0)).all, "batches of their own")
	require.Empty(t, verl(12, always(64), always(64), always(64), always(0)).all, "prompts of one length")
	require.Empty(t, verl(9, always(71.25), always(40), always(130), always(0)).all, "few lines")
	one := verl(12, always(71.25), always(40), always(130), func(i int) float64 { return float64(i) })
	require.Empty(t, one.fails)
	require.Zero(t, one.exit, "an epoch of one batch")
}

// More of the catalogue in the documented formats: ranges, spikes, and what only a line about the whole run says.
func TestRanges(t *testing.T) {
	verl := func(more func(i int) string) string {
		return lines(30, func(i int) string {
			return fmt.Sprintf("step:%d - actor/pg_loss:%g - critic/score/mean:%g%s", i+1, .01*wave(i), .3+.01*wave(i), more(i))
		})
	}
	for _, c := range []struct{ id, name, log string }{
		{"SIGN-RANGE", "t.jsonl", lines(5, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"grad_norm":-0.5,"completions/mean_length":9}`, i)
		})},
		{"SIGN-RANGE", "v.log", verl(func(int) string { return " - critic/vf_loss:-0.3" })},
		{"BOUND-RANGE", "d.jsonl", lines(5, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.6,"logps/chosen":4.5,"logps/rejected":-20,"rewards/chosen":0.1,"rewards/rejected":0.05,"rewards/margins":0.05,"rewards/accuracies":0.6}`, i)
		})},
		{"IS-SEQUENCE", "t.jsonl", lines(12, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"grad_norm":0.5,"sampling/sampling_logp_difference/mean":0.002,"sampling/importance_sampling_ratio/mean":0.569,"completions/mean_length":9}`, i)
		})},
		{"SPIKE", "v.log", verl(func(i int) string {
			norm := .5 + .05*wave(i)
			if i == 17 {
				norm = 900
			}
			return fmt.Sprintf(" - actor/grad_norm:%g", norm)
		})},
		{"CLIP-ALWAYS-0", "v.log", verl(func(i int) string {
			return fmt.Sprintf(" - actor/grad_norm:0.5 - actor/pg_clipfrac:0.0 - actor/ppo_kl:%g", .05+.001*wave(i))
		})},
		{"H7b", "g.jsonl", lines(4, func(i int) string {
			return fmt.Sprintf(`{"iter":%d,"loss":-0.2,"pg_loss":-0.2,"kl_penalty":0.001,"std_reward":0.2,"skipped_micro_steps":%d}`, i, i%3)
		})},
		{"A4", "a.log", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity of 11.76 GiB of which 40.19 MiB is free.\n"},
		{"C1", "c.log", "train: WARNING: device cuda is not there (C1): the run is on the CPU; say device=cpu\n"},
		{"STALL", "n.log", "[rank0]:[E1126 10:00:00] [PG 0 Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=81) ran for 600041 milliseconds\n"},
		{"H11", "h.log", "RuntimeError: \"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'\n"},
	} {
		j := text(t, c.name, c.log)
		require.NotEmpty(t, j.top, "%s\n%s", c.id, c.log)
		require.Equal(t, c.id, j.top[0], "%v", j.all)
	}
}
