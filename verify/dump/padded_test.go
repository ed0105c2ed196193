package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Whitening over padding is of no right program whose mask has padding, and is none over cells that joining files has filled up.
func TestWhiteningOverPadding(t *testing.T) {
	fits := func(cols int, from string, mask ...bool) bool {
		b := &dumpfile.Batch{Rows: 2, Cols: 3, Mask: mask, Tensors: map[string]*dumpfile.Tensor{}, Origin: []dumpfile.Origin{{Cols: cols}, {Cols: cols}},
			Files: []dumpfile.FileInfo{{Hi: 2, Cols: cols}}}
		b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
		for name, x := range map[string][]float64{"token_rewards": {1, 2, 0, 4, 5, 0}, "values": {0, 0, 0, 0, 0, 0}, "advantages": {1, 2, 0, 4, 5, 0}} {
			b.Tensors[name] = &dumpfile.Tensor{Name: name, Layout: dumpfile.PerToken, Width: 1, Shape: []int{2, 3}, Data: x, Type: format.F32}
		}
		p, _, err := convention.Lookup("oai@2019")
		require.NoError(t, err)
		set := masked(convention.FromProfile(p).With("mask.tokens", convention.Value{}, "").With("gae.lambda", convention.NumberValue(0), "test"))
		c := stage.Change{Option: "whiten.mask", To: set.Value("whiten.mask")}
		if from != "" {
			c.From, err = convention.Parse(c.Option, from)
			require.NoError(t, err)
		}
		o := stage.Judge(stage.Find("gae/advantage"), b, set)
		require.Equal(t, check.Fail, o.Verdict)
		return whitensPadding(stage.Fit{Changes: []stage.Change{c}, Set: set, Outcome: o})
	}
	require.True(t, fits(3, "", true, true, false, true, true, false))
	require.False(t, fits(2, "", true, true, false, true, true, false), "filled up")
	require.False(t, fits(3, "", true, true, true, true, true, true), "no padding")
	require.False(t, fits(3, "response", true, true, false, true, true, false), "declared")
}
