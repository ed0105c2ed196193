package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Returns whose advantages are carried by λ without γ, or by more than γ, are of no γ and λ that people write; those of a γλ are.
func TestCarriedBeyond(t *testing.T) {
	for k, c := range []struct {
		gamma, carry float64
		want         bool
	}{{0.95, 0.9, true}, {0.95, 0.9, true}, {0.9, 0.95, true}, {0.95, 0.95 * 0.9, false}, {1, 0.95, false}, {0.99, 0.99, false}, {0.9, 0.45, false}, {0.99, 0.99 * 0.95, false}, {0.99, 0.95, true}} {
		const rows, cols = 6, 16
		b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}}
		for _, name := range []string{"token_rewards", "values", "returns"} {
			b.Tensors[name] = &dump.Tensor{Name: name, Width: 1, Layout: dump.PerToken, Type: format.F32, Shape: []int{rows, cols}, Data: make([]float64, rows*cols)}
		}
		r, v, out := b.Token("token_rewards"), b.Token("values"), b.Token("returns")
		done := make([]float64, rows*cols)
		if k > 0 { // episodes end in a row
			b.Tensors["dones"] = &dump.Tensor{Name: "dones", Width: 1, Layout: dump.PerToken, Type: format.F32, Shape: []int{rows, cols}, Data: done}
		}
		for row := range rows {
			var next, sum float64
			for col := cols - 1; col >= 0; col-- {
				i := row*cols + col
				b.Mask[i] = true
				r[i], v[i] = float64(float32(0.1*math.Cos(float64(5*i)))), float64(float32(math.Sin(float64(3*i*i))))
				if k > 0 && i%7 == 3 {
					next, sum, done[i] = 0, 0, 1
				}
				sum = r[i] + c.gamma*next - v[i] + c.carry*sum
				next = v[i]
				out[i] = float64(float32(sum + v[i]))
			}
		}
		require.Equal(t, c.want, CarriedBeyond(b), "%v", c)
	}
}

// A recursion whose next value is the own one, or whose rewards are those of the next token, has the γ and λ that it was made with; under the right
// recursion no number is its own.
func TestDecaysUnder(t *testing.T) {
	const gamma, lambda = 0.97, 0.9
	own := func(x []float64, t int) float64 { return x[t] }
	next := func(x []float64, t int) float64 {
		if t+1 < len(x) {
			return x[t+1]
		}
		return 0
	}
	for name, f := range map[string]struct{ next, own, reward ofToken }{"next": {own, own, own}, "early": {next, own, next}, "added": {next, func(x []float64, t int) float64 { return -x[t] }, own}} {
		b := ppoBatch(5, rewardsOf(0.1, 0), func(r, v []float64) []float64 {
			a := make([]float64, len(r))
			for t := len(r) - 1; t >= 0; t-- {
				a[t] = f.reward(r, t) + gamma*f.next(v, t) - f.own(v, t) + gamma*lambda*next(a, t)
			}
			return a
		})
		shown := DecaysUnder(b, &convention.Set{}, f.next, f.own, f.reward)
		require.NotEmpty(t, shown, name)
		require.Equal(t, map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9"}, texts(shown[0]), name)
		require.Empty(t, DecaysUnder(b, &convention.Set{}, next, own, own), name)
	}
}

// Where returns are of another recursion, or of another λ, advantages tell γ and λ by themselves, and whether they were whitened.
func TestDecaysOfAdvantagesAlone(t *testing.T) {
	for _, white := range []bool{false, true} {
		b := recursed(0.8, 1, 0)
		b.Origin = make([]dump.Origin, b.Rows)
		ret, v, adv := b.Token("returns"), b.Token("values"), b.Token("advantages")
		for i := range ret {
			if white {
				adv[i] = float64(float32(1.7*adv[i] - 0.4))
				ret[i] = float64(float32(adv[i] + v[i]))
			}
		}
		told := false
		for _, changes := range Shown(Find("gae/advantage"), b, &convention.Set{}) {
			is := map[string]string{}
			for _, c := range changes {
				is[c.Option] = c.To.String()
			}
			told = told || is["gae.gamma"] == "0.97" && is["gae.lambda"] == "0.8" && (is["whiten.scope"] == "none") == !white
		}
		require.True(t, told, "whitened: %v", white)
	}
}
