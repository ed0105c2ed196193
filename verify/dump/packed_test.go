package dump_test

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
	plant "plumbline/verify/plant/dump"
	"plumbline/verify/plant/trainer"
)

// TestPackedAndPadded judges one batch in three forms: the verdicts and the numbers are the same, check by check.
func TestPackedAndPadded(t *testing.T) {
	for i, p := range convention.Profiles() {
		t.Run(p.Name, func(t *testing.T) {
			set := trainer.Complete(p, rand.New(rand.NewPCG(uint64(i), 79)))
			b, set := trainer.Healthy(trainer.Config{Set: set, Rows: 16, Cols: 20, Seed: uint64(i), Holes: i%2 == 0})
			b = plant.Declared(b, set).Without("input_ids", "attention_mask", "prompt_len") // which have other columns
			if x := b.Tensors["kl"]; x != nil && x.Layout == dumpfile.PerRow {
				b = b.Without("kl")
			}
			padded := t.TempDir()
			writeFiles(t, padded, b)
			want := judgeFiles(t, dump.Options{}, padded)
			form := plant.Pack(b, 48, set.Value("mask.tokens").String() == "none")
			require.Less(t, len(form.Of), b.Rows/2, "several rows in one")
			for _, by := range []string{"segment_ids", "cu_seqlens"} {
				path := filepath.Join(t.TempDir(), "step_000001_rank_0_mb_0.safetensors")
				require.NoError(t, form.Write(path, b, by))
				sameResults(t, want, judgeFiles(t, dump.Options{}, path), by)
			}
		})
	}
}

func sameResults(t *testing.T, want, got *dump.Report, what string) {
	t.Helper()
	at := map[string]check.Result{}
	for _, r := range got.Results {
		at[r.Check] = r
	}
	for _, w := range want.Results {
		g, ok := at[w.Check]
		require.True(t, ok, "%s: no %s", what, w.Check)
		require.Equal(t, w.Verdict.String(), g.Verdict.String(), "%s: %s: %s, %s", what, w.Check, w.Reason, g.Reason)
		require.Equal(t, []float64{w.Measured, w.Limit}, []float64{g.Measured, g.Limit}, "%s: %s", what, w.Check)
		if w.Compared == g.Compared { // a gradient is judged in the cells of padding, too, and has a median over other cells
			require.Equal(t, w.Resolution, g.Resolution, "%s: %s", what, w.Check)
		}
	}
	require.Len(t, got.Results, len(want.Results))
}
