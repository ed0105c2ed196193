package fault

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Bounds of losses whose ratios are to the old log-probs of a token late, or are products over a row, or whose advantages have lost their sign, are solved with the bug in place.
func TestBoundsAreSolvedUnderOtherInputs(t *testing.T) {
	held := func(d, a float64) float64 {
		return math.Max(-a*math.Exp(d), -a*math.Max(1-0.13, math.Min(math.Exp(d), 1+0.27)))
	}
	for name, spoilt := range map[string]func(b *dump.Batch) *dump.Batch{
		"old log-probs a token late":  func(b *dump.Batch) *dump.Batch { return b.With("logp_old", rolledBy(b, b.Token("logp_old"), -1)) },
		"ratios of all tokens so far": func(b *dump.Batch) *dump.Batch { return b.With("logp_old", carried(b, false)) },
		"advantages without a sign":   func(b *dump.Batch) *dump.Batch { return b.With("advantages", mapped(b.Row("advantages"), math.Abs)) },
	} {
		b := unclipped()
		in := perTokenOf(spoilt(b), "token_loss", func(lp, old, a float64) float64 { return held(lp-old, a) })
		b.Tensors["token_loss"] = in.Tensors["token_loss"]
		steps := []stage.Step{{B: b, Set: &convention.Set{}}}
		require.Empty(t, stage.Solve(stage.Find("token_loss/policy"), steps), name)
		solved := SolvedUnder(stage.Find("token_loss/policy"), steps)
		require.NotEmpty(t, solved, name)
		got := map[string]string{}
		for _, c := range solved[0] {
			got[c.Option] = c.To.String()
		}
		require.Equal(t, "0.27", got["clip.high"], name)
	}
}

// The bounds of the ratios of rows are solved where the log-ratios of a row are divided by another number than that of its tokens.
func TestBoundsAreSolvedUnderOtherLengths(t *testing.T) {
	for name, by := range map[string]func(b *dump.Batch, n []float64) float64{
		"the padded width": func(b *dump.Batch, _ []float64) float64 { return float64(b.Cols) },
		"the mean length":  func(_ *dump.Batch, n []float64) float64 { return meanOf(n) },
	} {
		b := unclipped()
		for r := range b.Rows { // of all lengths
			for col := range b.Cols {
				b.Mask[r*b.Cols+col] = col <= (r*5)%b.Cols
			}
		}
		lp, old, adv, n := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), tokensOf(b, b.Mask)
		loss := make([]float64, len(lp))
		for r := range b.Rows {
			var sum float64
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if b.Mask[i] {
					sum += lp[i] - old[i]
				}
			}
			ratio := math.Exp(sum / by(b, n))
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if b.Mask[i] {
					loss[i] = float64(float32(math.Max(-adv[r]*ratio, -adv[r]*math.Max(1-0.013, math.Min(ratio, 1+0.027)))))
				}
			}
		}
		b.Tensors["token_loss"] = b.With("logp_old", loss).Tensors["logp_old"]
		steps := []stage.Step{{B: b, Set: &convention.Set{}}}
		require.Empty(t, stage.Solve(stage.Find("token_loss/policy"), steps), name)
		shows := func(changes []stage.Change) bool {
			return slices.ContainsFunc(changes, func(c stage.Change) bool { return c.Option == "clip.high" && c.To.String() == "0.027" })
		}
		require.True(t, slices.ContainsFunc(SolvedUnder(stage.Find("token_loss/policy"), steps), shows), name)
	}
}

// The cap of weights by log-probs of the engine that stand a token late, that of weights which it is a floor of, and the coefficient of a KL that is added to rewards, are read off with the bug in place.
func TestNumbersAreShownUnderOtherInputs(t *testing.T) {
	shows := func(id string, b *dump.Batch, option, value string) {
		t.Helper()
		require.True(t, slices.ContainsFunc(ShownUnder(stage.Find(id), b, &convention.Set{}), func(list []stage.Change) bool {
			return slices.ContainsFunc(list, func(c stage.Change) bool { return c.Option == option && c.To.String() == value })
		}), "%s: %s", id, option)
	}
	b := unclipped()
	old := b.Token("logp_old")
	gen := make([]float64, len(old))
	for i := range gen {
		gen[i] = float64(float32(old[i] + 0.1*math.Sin(float64(i*i))))
	}
	b.Tensors["logp_gen"] = b.With("logp_old", gen).Tensors["logp_old"]
	late := rolledBy(b, gen, -1)
	w := make([]float64, len(old))
	for i := range w {
		w[i] = float64(float32(min(math.Exp(old[i]-late[i]), 1.07)))
	}
	b.Tensors["is_weights"] = b.With("logp_old", w).Tensors["logp_old"]
	shows("ratio/is_weights", b, "tis.high", "1.07")
	for i := range w {
		w[i] = float64(float32(max(math.Exp(old[i]-gen[i]), 1.09)))
	}
	shows("ratio/is_weights", b, "tis.high", "1.09")
	for i := range w {
		w[i] = float64(float32(min(math.Exp(2*(old[i]-gen[i])), 1.11)))
	}
	shows("ratio/is_weights", b, "tis.high", "1.11")

	b = baselined(func(r []float64) []float64 { return r })
	r := make([]float64, len(b.Mask))
	for row := range b.Rows {
		for i := row * b.Cols; i < (row+1)*b.Cols && b.Mask[i]; i++ {
			r[i] = float64(float32(0.04 * b.Token("kl")[i]))
		}
		r[lastOf(b, row)] = float64(float32(0.04*b.Token("kl")[lastOf(b, row)] + b.Row("scores")[row]))
	}
	b.Tensors["token_rewards"] = b.With("kl", r).Tensors["kl"]
	shows("reward/token", b, "kl.beta", "0.04")

	for row := range b.Rows { // the mean of the row for the KL of each token
		cells := slices.Collect(b.TokensOf(row))
		var sum float64
		for _, i := range cells {
			sum += b.Token("kl")[i]
		}
		for _, i := range cells {
			r[i] = float64(float32(-0.07 * sum / float64(len(cells))))
		}
		last := cells[len(cells)-1]
		r[last] = float64(float32(r[last] + b.Row("scores")[row]))
	}
	shows("reward/token", b, "kl.beta", "0.07")
}
