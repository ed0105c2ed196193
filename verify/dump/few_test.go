package dump_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
)

// A few cells that arithmetic in bfloat16 puts wrong, in a file that does not say what it computed in, are undetermined. One cell
// three times as large is a failure there, too, in whatever step: no rounding does that.
func TestFewCellsInSixteenBits(t *testing.T) {
	profiles := convention.Profiles()
	p := profiles[slices.IndexFunc(profiles, func(p *convention.Profile) bool { return p.Name == "trl-ppo@1.12" })]
	step := func(n int) *dumpfile.Batch {
		b := sixteen(p, 38, format.BF16, false)
		b.Meta.Step = n
		return b
	}
	judged := func(run ...*dumpfile.Batch) check.Result {
		r, err := dump.Judge(context.Background(), dump.Batches(run), dump.Options{Selection: check.Selection{Select: []string{"gradient/dvalues"}}})
		require.NoError(t, err)
		at := slices.IndexFunc(r.Results, func(x check.Result) bool { return x.Check == "gradient/dvalues" })
		require.GreaterOrEqual(t, at, 0)
		return r.Results[at]
	}
	first, second := step(1), step(2)
	runs := map[string]dump.Batches{"8 of 768": {first}}
	if cases.All { // each judgement of so many numbers near their bounds takes seconds
		runs["16 of 1536"] = dump.Batches{first, second}
	}
	for cells, run := range runs {
		healthy := judged(run...)
		require.Equal(t, check.Undetermined, healthy.Verdict, "%s: %s", cells, healthy.Reason)
		require.Contains(t, healthy.Reason, cells+" compared elements beyond their bound")
		require.Contains(t, healthy.Reason, "too few to tell from rounding, had this stage run in bfloat16")
	}
	x := second.Tensors["dvalues"].Data
	largest := 0
	for j, v := range x {
		if second.Mask[j] && max(v, -v) > max(x[largest], -x[largest]) {
			largest = j
		}
	}
	x[largest] *= 3
	require.Equal(t, check.Fail, judged(second).Verdict)
	if cases.All {
		require.Equal(t, check.Fail, judged(first, second).Verdict)
	}
}

// What lies on a grid of 16 bits is a warning where nobody says in what it was computed, and wrong where float32 is declared and the files hold float32.
func TestSixteenBitsAgainstADeclaration(t *testing.T) {
	profiles := convention.Profiles()
	p := profiles[slices.IndexFunc(profiles, func(p *convention.Profile) bool { return p.Name == "trl-ppo@1.12" })]
	judged := func(declared string) map[string]check.Verdict {
		b := sixteen(p, 38, format.BF16, false)
		b.Meta.ComputeDType = declared
		for name, x := range b.Tensors {
			y := *x
			y.Type = format.F32
			b.Tensors[name] = &y
		}
		r, err := dump.Judge(context.Background(), dump.Batches{b}, dump.Options{Selection: check.Selection{Select: []string{"token_loss/policy", "gradient/dlogp"}}})
		require.NoError(t, err)
		said := map[string]check.Verdict{}
		for _, res := range r.Results {
			if strings.Contains(res.Reason, "stage having run in bfloat16") || strings.Contains(res.Reason, "compute_dtype declares float32") {
				said[res.Check] = res.Verdict
			}
		}
		return said
	}
	warned, failed := judged(""), judged("float32")
	require.NotEmpty(t, warned)
	for id, v := range warned {
		require.Equal(t, check.Warn, v, id)
		require.Equal(t, check.Fail, failed[id], id)
	}
}
