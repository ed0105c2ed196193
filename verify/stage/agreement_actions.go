package stage

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/tol"
)

// otherActions finds log-probs of a first update that are those of other actions than the rollout took: the values, which no action enters, are those of
// the rollout bit by bit, so that weights, observations and kernels are the same, and the log-probs are, too, wherever both actions happen to be one. Noise
// of two passes leaves few tokens as they are and changes the others by little; tokens of older weights stand together in a row and do not alternate.
func (c *Case) otherActions(lp, old []float64) *Violation {
	const (
		share    = 0.1  // of the tokens that are equal, and of those that are not
		rounding = 1e-5 // of two passes in float32
		apart    = 1e-3
		turns    = 4 // changes from equal to unequal tokens, in each of half of the rows
	)
	v, now := c.B.Token("values"), c.B.Token("values_new")
	if v == nil || now == nil || c.B.Cols == 0 {
		return nil
	}
	for _, name := range []string{"values", "values_new", "logp_old", "logp_new"} {
		if Grid(c.B.Tensors[name].Data) > tol.U32 {
			return nil
		}
	}
	var equal, rounded, rows, mixed int
	var sizes []float64
	values := map[float64]bool{}
	for r := range c.B.Rows {
		changes, last, seen := 0, false, 0
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			d := math.Abs(lp[i] - old[i])
			switch {
			case !c.B.Mask[i]:
				continue
			case v[i] != now[i] || math.IsNaN(d) || math.IsInf(d, 0):
				return nil
			case -math.Expm1(min(old[i], 0)) <= 0.01: // certain, whatever the action is
				continue
			case d == 0:
				equal++
			default:
				if sizes = append(sizes, d); d < rounding {
					rounded++
				}
			}
			values[v[i]] = true
			if seen++; seen > 1 && last != (d == 0) {
				changes++
			}
			last = d == 0
		}
		if seen > 0 {
			rows++
			if changes >= turns {
				mixed++
			}
		}
	}
	n := float64(equal + len(sizes))
	if n < few || len(values) < few/2 || float64(equal) < share*n || float64(len(sizes)) < share*n || float64(rounded) > share/2*n || 2*mixed < rows {
		return nil
	}
	slices.Sort(sizes)
	median := sizes[len(sizes)/2]
	if !(median > apart) {
		return nil
	}
	return &Violation{Row: -1, Col: -1, Got: median, Fault: "LOGP-OTHER-ACTION",
		Reason: fmt.Sprintf("this is the first update of its rollout: all values are those of the rollout bit by bit, and so are %d log-probs; the other %d, between them, are off by %.3g at the median: they are of other actions at the same observations", equal, len(sizes), median)}
}
