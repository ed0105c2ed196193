package dump_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// pairsThatDeclareNothing judges a run of golden/pairs without what its files declare, with the outputs that change writes.
func pairsThatDeclareNothing(t *testing.T, name string, change func(b *dumpfile.Batch)) []check.Result {
	t.Helper()
	run, err := dumpfile.Open(context.Background(), []string{filepath.Join("../../golden/pairs", name)})
	require.NoError(t, err)
	var steps dump.Batches
	for i, step := range slices.Concat(run.Steps(), run.Steps()) {
		b, err := run.Batch(context.Background(), step)
		require.NoError(t, err)
		b.Meta.Step = i + 1
		b.Meta.Options, b.Meta.Framework, b.Meta.Version, b.Meta.Profile = nil, "", "", ""
		if change != nil {
			change(b)
		}
		steps = append(steps, b)
	}
	r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: dump.NoProfile})
	require.NoError(t, err)
	return r.Results
}

// Nothing declared, a bug of pairs whose numbers have one value under it, and none under any loss without it, fails by its name.
func TestBugsOfPairsThatDeclareNothing(t *testing.T) {
	for _, c := range []struct {
		run, id, bug string
		change       func(b *dumpfile.Batch)
	}{
		{"robust-not-divided", "preference/pair_loss", "DPO-SMOOTHING", nil},
		{"rpo", "preference/dpo_loss", "DPO-NLL", func(b *dumpfile.Batch) { // −0.5·nll_loss in place of +0.5·nll_loss, with another one in every step
			loss, nll := b.Tensors["loss"].Data, b.Tensors["nll_loss"].Data
			plain := loss[0] - 0.5*nll[0]
			nll[0] = single(nll[0] * (1 + 0.1*float64(b.Meta.Step)))
			loss[0] = single(plain - 0.5*nll[0])
		}},
		{"hinge", "preference/pair_loss", "DPO-BETA", func(b *dumpfile.Batch) { // β = 1 in max(0, 1 − βh), another one in what is logged
			c, r, rc, rr := b.Row("logp_chosen"), b.Row("logp_rejected"), b.Row("ref_chosen"), b.Row("ref_rejected")
			for i := range b.Tensors["pair_loss"].Data {
				b.Tensors["pair_loss"].Data[i] = single(max(0, 1-((c[i]-r[i])-(rc[i]-rr[i]))))
			}
		}},
	} {
		found := false
		for _, r := range pairsThatDeclareNothing(t, c.run, c.change) {
			if r.Check == c.id {
				found = true
				require.Equal(t, check.Fail, r.Verdict, "%s: %s", c.run, r.Reason)
				require.NotEmpty(t, r.Explanations, c.run)
				require.Equal(t, c.bug, r.Explanations[0].Fault, c.run)
				require.False(t, r.Explanations[0].Lead, c.run)
			}
		}
		require.True(t, found, c.run)
	}
}

// What TRL's own code makes of pairs is no failure where nothing is declared.
func TestPairsOfTRLThatDeclareNothing(t *testing.T) {
	var expect map[string]string
	data, err := os.ReadFile("../../golden/pairs/EXPECT.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &expect))
	for i, name := range slices.Sorted(maps.Keys(expect)) {
		if expect[name] != "" || i%(2*cases.Every) != 0 && !cases.All {
			continue
		}
		for _, r := range pairsThatDeclareNothing(t, name, nil) {
			require.NotContains(t, []check.Verdict{check.Fail, check.Convention}, r.Verdict, "%s%s", name, describe([]check.Result{r}))
		}
	}
}
