package stage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// Ranks that each count their own tokens, where all divide by those of all, are named; nothing is said where each divides by its own, and no failure is where
// nobody says what is divided by.
func TestRanksThatCountDifferently(t *testing.T) {
	tr := newTrainer(33)
	b := tr.b
	tr.perFile("loss", make([]float64, len(b.Files)))
	own := map[int]float64{}
	for i, in := range b.Mask {
		if in {
			own[b.Files[b.File(i/b.Cols)].Rank]++
		}
	}
	counts := func(more float64) (list []dump.Count) {
		for _, f := range b.Files {
			list = append(list, dump.Count{Name: "num_items_in_batch", Rank: f.Rank, MicroBatch: f.MicroBatch, N: own[f.Rank] + more*float64(f.Rank)})
		}
		return list
	}
	global := reduction{kind: "token", where: "global"}.set(t, &convention.Set{})
	b.Meta.Counts = counts(0)
	o := judgedRules(t, "aggregate/num_items", b, global)
	require.Equal(t, check.Fail, o.Verdict)
	require.Equal(t, "AGG-LOCAL-DENOMINATOR", o.Rules.Violations[0].Fault)
	require.NotEqual(t, check.Fail, judgedRules(t, "aggregate/num_items", b, reduction{kind: "token", where: "micro"}.set(t, &convention.Set{})).Verdict)
	require.NotEqual(t, check.Fail, judgedRules(t, "aggregate/num_items", b, &convention.Set{}).Verdict)
	b.Meta.Counts = counts(1)
	o = judgedRules(t, "aggregate/num_items", b, global)
	require.Equal(t, check.Fail, o.Verdict)
	require.Empty(t, o.Rules.Violations[0].Fault)
}

// Files that have the count of their own tokens where all divide by those of all are named; a file that has one more is not.
func TestFilesThatCountTheirOwn(t *testing.T) {
	tr := newTrainer(33)
	b := tr.b
	tr.perFile("loss", make([]float64, len(b.Files)))
	for _, more := range []float64{0, 1} {
		b.Meta.Counts = nil
		for k, f := range b.Files {
			n := more * float64(k)
			for _, in := range b.Mask[f.Lo*b.Cols : f.Hi*b.Cols] {
				if in {
					n++
				}
			}
			b.Meta.Counts = append(b.Meta.Counts, dump.Count{Name: "num_items_in_batch", Rank: f.Rank, MicroBatch: f.MicroBatch, N: n})
		}
		o := judgedRules(t, "aggregate/num_items", b, reduction{kind: "token", where: "global"}.set(t, &convention.Set{}))
		require.Equal(t, check.Fail, o.Verdict)
		require.Equal(t, more == 0, o.Rules.Violations[0].Fault == "AGG-LOCAL-DENOMINATOR")
	}
}
