package golden

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
)

// Every output of an entry is really compared: another number in one place that means something, another text, or one
// element too few is a failure. What the reference has no number for on purpose is listed by TestWhatIsCompared.
func TestEveryOutputCanFail(t *testing.T) {
	s := embedded(t)
	flipped := map[string]int{}
	for _, sec := range sections {
		step, stride := 1.0, 1
		if len(s.Sections[sec.name].Entries) > 60 { // of many entries of few kinds, some
			stride = 5
		}
		if testing.Short() || !cases.All {
			stride *= 5
		}
		if sec == logProbEntropy {
			step = 1e9 // the entropy of bfloat16 logits around 1e4 is hardly known at all
		}
		for n, e := range s.Sections[sec.name].Entries {
			if n%stride != 0 {
				continue
			}
			c := &call{e: e, given: e, used: map[string]bool{}}
			for _, a := range sec.functions[e.Peer+" "+e.Function](c) {
				v := e.Out[a.output]
				if v == nil || v.Raises != "" || a.excuse != "" {
					continue
				}
				f := e.copied()
				w := f.Out[a.output]
				switch i := slices.Index(a.only, true); {
				case a.text != nil:
					w.Raw = w.Raw.(string) + "."
				case len(v.Data) == 0 && a.list:
					w.Data = []float64{0}
				case len(v.Data) == 0, a.only != nil && i < 0:
					continue // nothing to flip: no element, or only padding
				default:
					i = max(0, i)
					w.Data = slices.Clone(v.Data)
					if x := w.Data[i]; x-x != 0 {
						w.Data[i] = 0
					} else {
						w.Data[i] = x + step*max(1, math.Abs(x))
					}
				}
				o, err := judge(f, sec.functions[e.Peer+" "+e.Function])
				require.NoError(t, err)
				if o.unknown != "" && (e.nonFinite() || sec == logProbEntropy) {
					continue // NaN there and not here may be a convention; an overflow in bfloat16 leaves no bound
				}
				require.NotZero(t, o.failed, "%s, %s", e.Name(), a.output)
				flipped[sec.name]++
			}
		}
	}
	for _, sec := range sections {
		require.NotZero(t, flipped[sec.name], sec.name)
	}
	t.Logf("flipped %v", flipped)
}
