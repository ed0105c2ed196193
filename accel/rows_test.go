package accel_test

import (
	"slices"
	"testing"

	"plumbline/accel"
	"plumbline/accel/f32"
	"plumbline/verify/op"
)

// rowOps are the ops of rows and heads.
func rowOps() []op.Op {
	silu, err := f32.FindActivation("silu")
	if err != nil {
		panic(err)
	}
	return []op.Op{
		op.RMSNorm.With(f32.RMSNorm),
		op.LayerNorm.With(f32.LayerNorm),
		op.Softmax.With(f32.Softmax),
		op.SwiGLU.With(silu.Gated),
		op.SwiGLUBackward.With(silu.GatedBackward),
		op.SoftmaxBackward.With(f32.SoftmaxBackward),
		op.RMSNormBackward.With(f32.RMSNormBackward),
		op.Head.With(head),
		op.HeadBackward.With(headBack),
		op.Add.With(f32.Add),
		op.Scale.With(f32.Scale),
		op.Max.With(f32.Max),
		op.Rotate.With(func(x []float32, heads, dim, rotated int, interleaved, inverse bool, cos, sin []float32) {
			r := f32.RoPE{Dim: rotated, Interleaved: interleaved, Frequencies: make([]float64, rotated/2)}
			r.Apply(x, heads, dim, cos, sin, inverse)
		}),
		op.Attention.With(func(a op.AttentionShape, y, q, k, v []float32) {
			b := f32.Attention{Heads: a.Heads, KVHeads: a.KVHeads, Dim: a.Dim, Scale: a.Scale, Causal: a.Causal, Window: a.Window, Real: a.Real}
			var w f32.Scratch
			for kv := range a.KVHeads {
				b.Forward(y, q, k, v, kv, &w)
			}
		}),
		op.AttentionBackward.With(f32.AttentionBatch),
	}
}

// The ops of rows against their specs.
func TestRowOps(t *testing.T) {
	for _, o := range rowOps() {
		t.Run(o.Name, func(t *testing.T) {
			if !slices.Contains(accel.Ops(), o.Name) { // it has one form, in portable Go
				o.Test(t, "", 1, *cases)
				return
			}
			accel.Each(o.Name, func(v accel.Variant) {
				t.Run(v.Name, func(t *testing.T) {
					if v.Broken {
						t.Fatal(v.Missing)
					}
					if v.Missing != "" {
						op.Skip(t, v.Name, v.Missing)
					}
					n := *cases
					if o.Name == op.AttentionBackward.Name {
						n = (n + 4) / 5 // its reference is a tape
					}
					o.Test(t, v.Name, 1, n)
				})
			})
		})
	}
}

// chunks takes the logits of a row in parts.
func chunks(z []float32, chunk, target int) (h f32.Head) {
	for first := 0; first < len(z); first += chunk {
		h.Add(z[first:min(len(z), first+chunk)], first, target)
	}
	return h
}

func head(z []float32, chunk, target int) (logp, entropy float64) {
	h := chunks(z, chunk, target)
	return h.LogProb(), h.Entropy()
}

func headBack(z []float32, chunk, target int, dlp, dh float64) {
	h := chunks(z, chunk, target)
	for first := 0; first < len(z); first += chunk {
		h.Slopes(z[first:min(len(z), first+chunk)], first, target, dlp, dh)
	}
}
