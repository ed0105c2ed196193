package dump_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
	plant "plumbline/verify/plant/dump"
	"plumbline/verify/plant/trainer"
)

// writeFiles writes a batch as a hook would, a file for each micro-batch of a rank.
func writeFiles(t *testing.T, dir string, b *dumpfile.Batch) {
	t.Helper()
	for i, f := range b.Files {
		m := b.Meta
		m.Rank, m.MicroBatch, m.Scalars = f.Rank, f.MicroBatch, f.Scalars
		rows := f.Hi - f.Lo
		tensors := []*dumpfile.Tensor{dumpfile.NewMask("response_mask", rows, b.Cols, b.Mask[f.Lo*b.Cols:f.Hi*b.Cols])}
		for _, name := range b.Names() {
			if name == "kl" && b.Tensors[name].Layout == dumpfile.PerRow {
				continue // a file has it per token
			}
			tensors = append(tensors, partOf(b, b.Tensors[name], i))
		}
		name := fmt.Sprintf("step_%06d_rank_%d_mb_%d.safetensors", m.Step, m.Rank, m.MicroBatch)
		require.NoError(t, dumpfile.WriteFile(filepath.Join(dir, name), m, tensors...))
	}
}

// partOf returns what file i holds of a tensor.
func partOf(b *dumpfile.Batch, x *dumpfile.Tensor, i int) *dumpfile.Tensor {
	f := b.Files[i]
	rows := f.Hi - f.Lo
	y := *x
	per := max(x.Width, 1)
	switch x.Layout {
	case dumpfile.PerToken:
		per *= b.Cols
		y.Shape = []int{rows, b.Cols}
	case dumpfile.PerRow:
		y.Shape = []int{rows}
	case dumpfile.PerFile:
		y.Shape, y.Data = nil, x.Data[i:i+1]
		return &y
	default:
		return &y
	}
	if x.Width > 1 {
		y.Shape = append(y.Shape, x.Width)
	}
	y.Data = x.Data[f.Lo*per : f.Hi*per]
	return &y
}

// judgeFiles reads files back and judges them.
func judgeFiles(t *testing.T, o dump.Options, patterns ...string) *dump.Report {
	t.Helper()
	run, err := dumpfile.Open(context.Background(), patterns)
	require.NoError(t, err)
	r, err := dump.Judge(context.Background(), run, o)
	require.NoError(t, err)
	return r
}

// without judges the files of a folder but those whose names have a part in them.
func without(t *testing.T, dir, part string, o dump.Options) *dump.Report {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	require.NoError(t, err)
	some := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return strings.Contains(filepath.Base(name), part) })
	require.Less(t, len(some), len(all), part)
	require.NotEmpty(t, some)
	return judgeFiles(t, o, some...)
}

// undeterminedFor returns the checks that decided something of the whole step and are undetermined for want of a part, which
// they must name; nothing may be wrong.
func undeterminedFor(t *testing.T, whole, part *dump.Report, what string) []string {
	t.Helper()
	decided := map[string]bool{}
	for _, r := range whole.Results {
		decided[r.Check] = r.Verdict == check.Pass
	}
	var ids []string
	for _, r := range part.Results {
		require.NotContains(t, []check.Verdict{check.Fail, check.Convention}, r.Verdict, describe([]check.Result{r}))
		if r.Verdict == check.Undetermined && decided[r.Check] {
			require.Contains(t, r.Reason, what, "%s does not say what is missing", r.Check)
			ids = append(ids, r.Check)
		}
	}
	return ids
}

// spanning is a batch of four ranks with two micro-batches each, two rows in a file and eight in a group.
func spanning(p *convention.Profile, seed uint64, dtype format.DType) (*dumpfile.Batch, *convention.Set) {
	set := trainer.Complete(p, rand.New(rand.NewPCG(seed, 78)))
	return trainer.Healthy(trainer.Config{Set: set, Rows: 16, Group: 8, Cols: 14, Files: 2, Ranks: 4, Seed: seed, Logits: true, DType: dtype})
}

// TestRanks judges groups that span ranks: everything passes, and nothing fails if a rank or a micro-batch is not there.
func TestRanks(t *testing.T) {
	for i, p := range convention.Profiles() {
		if i%everyProfile != 0 {
			continue
		}
		b, set := spanning(p, uint64(i), format.F32)
		ranks := map[[2]int]bool{}
		group := b.Row("group_id")
		for r := range b.Rows {
			ranks[[2]int{int(group[r]), b.Files[b.File(r)].Rank}] = true
		}
		groups := map[float64]bool{}
		for _, g := range group {
			groups[g] = true
		}
		require.Greater(t, len(ranks), len(groups), "no group spans ranks")
		t.Run(p.Name, func(t *testing.T) {
			dir := t.TempDir()
			writeFiles(t, dir, plant.Declared(b, set))
			whole := judgeFiles(t, dump.Options{}, dir)
			require.Empty(t, bad(whole), describe(bad(whole)))
			hurt := map[string]bool{}
			for rank := range 4 {
				for _, id := range undeterminedFor(t, whole, without(t, dir, fmt.Sprintf("rank_%d_", rank), dump.Options{}), fmt.Sprintf("rank %d", rank)) {
					hurt[id] = true
				}
			}
			for _, id := range undeterminedFor(t, whole, without(t, dir, "rank_2_mb_1", dump.Options{}), "micro-batch 1") {
				hurt[id] = true
			}
			t.Log("undetermined without a part:", slices.Sorted(maps.Keys(hurt)))
		})
	}
}

// TestGoldenRanks does the same with two ranks of a real trainer.
func TestGoldenRanks(t *testing.T) {
	dir := filepath.Join("..", "..", "golden", "dumps", "trl-grpo", "clean", "dapo_two_ranks")
	o := dump.Options{Profile: "trl-grpo@1.16"}
	whole := judgeFiles(t, o, dir)
	require.Empty(t, bad(whole), describe(bad(whole)))
	for _, r := range whole.Results {
		require.NotEqual(t, check.Undetermined, r.Verdict, r.Check)
	}
	for _, part := range [][2]string{{"rank_0_", "rank 0"}, {"rank_1_", "rank 1"}, {"rank_0_mb_1", "micro-batch 1"}, {"rank_1_mb_0", "micro-batch 0"}} {
		ids := undeterminedFor(t, whole, without(t, dir, part[0], o), part[1])
		require.Subset(t, ids, []string{"advantage/group"}, part)
		t.Log(part[1], "missing:", ids)
	}
}
