package dump_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// What TRL's own code makes of pairs passes under what its configuration says; a planted bug is named.
func TestPairsOfTRL(t *testing.T) {
	const root = "../../golden/pairs"
	var expect map[string]string
	data, err := os.ReadFile(filepath.Join(root, "EXPECT.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &expect))
	require.Greater(t, len(expect), 25)
	for name, want := range expect {
		t.Run(name, func(t *testing.T) {
			report := judge(t, filepath.Join(root, name), dump.Options{})
			passed, named := 0, false
			for _, r := range report.Results {
				switch r.Verdict {
				case check.Pass:
					passed++
				case check.Fail, check.Convention:
					require.NotEmpty(t, want, "%s%s", name, describe([]check.Result{r}))
					for _, e := range r.Explanations {
						named = named || e.Fault == want
					}
				case check.Undetermined:
					require.NotEmpty(t, want, "%s: %s %s", name, r.Check, r.Reason)
				}
			}
			require.Equal(t, want != "", named)
			require.GreaterOrEqual(t, passed, 3)
		})
	}
}

// A hook stands before or behind the division by the accumulation steps: either is right, of a loss with a cross-entropy beside it, too, and what is
// divided has its whole gradient divided.
func TestPairsBeforeOrBehindTheDivision(t *testing.T) {
	run, err := dumpfile.Open(context.Background(), []string{"../../golden/pairs/rpo"})
	require.NoError(t, err)
	for _, by := range [][2]float64{{1, 1}, {2, 2}, {1, 4}} { // of the loss and of its gradient
		var steps dump.Batches
		for _, step := range run.Steps() {
			b, err := run.Batch(context.Background(), step)
			require.NoError(t, err)
			b.Meta.MicroBatches = 0
			for i, o := range b.Meta.Options {
				if o.Name == "gradient_accumulation_steps" {
					b.Meta.Options[i].Value = 2.
				}
			}
			for name, k := range map[string]float64{"loss": by[0], "dlogp_chosen": by[1], "dlogp_rejected": by[1]} {
				for i := range b.Tensors[name].Data {
					b.Tensors[name].Data[i] /= k
				}
			}
			steps = append(steps, b)
		}
		r, err := dump.Judge(context.Background(), steps, dump.Options{Selection: check.Selection{Select: []string{"preference/*"}}})
		require.NoError(t, err)
		if by[0] == by[1] {
			for _, res := range r.Results {
				if res.Compared > 0 {
					require.Equal(t, check.Pass, res.Verdict, "%s: %s", res.Check, res.Reason)
				}
			}
			continue
		}
		require.Len(t, bad(r), 2, describe(bad(r)))
		require.Equal(t, check.Fail, bad(r)[0].Verdict, describe(bad(r)))
	}
}
