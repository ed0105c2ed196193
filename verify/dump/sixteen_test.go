package dump_test

import (
	"context"
	"fmt"
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

// line returns the line of a report that begins so, "" if it has none.
func line(r *dump.Report, begin string) string {
	i := slices.IndexFunc(r.Lines, func(l string) bool { return strings.HasPrefix(l, begin) })
	if i < 0 {
		return ""
	}
	return r.Lines[i]
}

// TestGoldenSixteenBits says of runs of real trainers what was computed in 16 bits and what was stored so.
func TestGoldenSixteenBits(t *testing.T) {
	dir := filepath.Join("..", "..", "golden", "dumps")
	t.Run("trainer in bf16", func(t *testing.T) {
		r := judgeFiles(t, dump.Options{Profile: "verl-grpo@0.9"}, filepath.Join(dir, "verl", "clean", "grpo_bf16"))
		require.Empty(t, bad(r), describe(bad(r)))
		require.Contains(t, line(r, "number formats: "), "bfloat16: advantages, dlogp, kl, logp_gen")
		require.Contains(t, line(r, "number formats: "), "float32: entropy")
		require.Contains(t, line(r, "arithmetic: "), "declares bfloat16")
		require.Contains(t, line(r, "arithmetic: "), "computed in bfloat16")
		require.Contains(t, line(r, "power lost"), "kl/token")
		require.Contains(t, line(r, "power lost"), "UNDETERMINED")
	})
	t.Run("model in bf16, losses in float32", func(t *testing.T) {
		r := judgeFiles(t, dump.Options{Profile: "trl-grpo@1.16"}, filepath.Join(dir, "trl-grpo", "clean", "grpo_bf16"))
		require.Empty(t, bad(r), describe(bad(r)))
		require.Contains(t, line(r, "arithmetic: "), "model is declared as bfloat16, and no dumped tensor is on that grid")
		require.Empty(t, line(r, "power lost"))
	})
	t.Run("hook in bf16", func(t *testing.T) {
		r := judgeFiles(t, dump.Options{Profile: "trl-grpo@1.16"}, filepath.Join(dir, "trl-grpo", "clean", "grpo_hook_bf16"))
		require.Empty(t, bad(r), describe(bad(r)))
		require.Contains(t, line(r, "arithmetic: "), "lossy declares that the hook cast down")
		require.Contains(t, line(r, "arithmetic: "), "inputs rounded to bfloat16 on storing")
		require.Contains(t, line(r, "power lost"), "gradient/dlogp")
	})
	t.Run("float32", func(t *testing.T) {
		r := judgeFiles(t, dump.Options{Profile: "trl-grpo@1.16"}, filepath.Join(dir, "trl-grpo", "clean", "gspo"))
		for _, begin := range []string{"number formats: ", "arithmetic: ", "power lost"} {
			require.Empty(t, line(r, begin))
		}
	})
}

// sixteen is a batch stored in bf16, computed in float32 or bf16, and whether it says so.
func sixteen(p *convention.Profile, seed uint64, compute format.DType, declared bool) *dumpfile.Batch {
	set := trainer.Complete(p, rand.New(rand.NewPCG(seed, 81)))
	b, set := trainer.Healthy(trainer.Config{Set: set, Rows: 32, Cols: 24, Files: 2, Seed: seed, DType: format.BF16, Compute: compute})
	b = plant.Declared(b, set)
	if !declared {
		b.Meta.ComputeDType, b.Meta.Lossy = "", nil
		for name, x := range b.Tensors {
			y := *x
			y.Casts = false
			b.Tensors[name] = &y
		}
	}
	return b
}

// TestSixteenBits recognises the arithmetic of batches of the independent trainer, declared or not, without a false alarm.
func TestSixteenBits(t *testing.T) {
	words := map[format.DType]string{format.F32: "computed in float32, inputs rounded to bfloat16 on storing", format.BF16: ": computed in bfloat16"}
	said := map[string]int{}
	for i, p := range convention.Profiles() {
		if i%everyProfile != 0 || testing.Short() && i%5 != 0 {
			continue
		}
		for _, compute := range []format.DType{format.F32, format.BF16} {
			for _, declared := range []bool{true, false} {
				name := fmt.Sprintf("%s, computed in %v, declared %v", p.Name, compute, declared)
				b := sixteen(p, uint64(i), compute, declared)
				r, err := dump.Judge(context.Background(), dump.Batches{b}, dump.Options{})
				require.NoError(t, err)
				text := line(r, "arithmetic: ")
				require.NotEmpty(t, text, name)
				require.NotEmpty(t, line(r, "power lost"), name)
				require.Equal(t, declared, strings.Contains(text, "compute_dtype declares "), name)
				for _, res := range r.Results {
					if res.Verdict == check.Fail || res.Verdict == check.Convention {
						said[fmt.Sprintf("%v %v alarm", compute, declared)]++
						t.Logf("%s %s", name, describe([]check.Result{res}))
					}
				}
				verdict := "not told"
				switch {
				case strings.Contains(text, words[compute]):
					verdict = "right"
				case strings.Contains(text, "recognised"):
					verdict = "wrong"
					t.Log(name, text)
				}
				said[fmt.Sprintf("%v %v %s", compute, declared, verdict)]++
			}
		}
	}
	t.Log(said)
	for _, declared := range []bool{true, false} {
		for _, compute := range []format.DType{format.F32, format.BF16} {
			key := fmt.Sprintf("%v %v ", compute, declared)
			require.Zero(t, said[key+"wrong"], key)
			if !testing.Short() { // a share of five says nothing
				require.GreaterOrEqual(t, said[key+"right"], leastTold*said[key+"not told"], key)
			}
			if declared || compute == format.F32 {
				require.Zero(t, said[key+"alarm"], key)
			}
		}
	}
	require.LessOrEqual(t, said["bfloat16 false alarm"], 3, "numbers too few to show 16 bits, of a trainer that does not say what it computes in")
}
