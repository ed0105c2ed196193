package golden

import (
	"slices"

	"plumbline/reference/rl"
)

// ValueLoss judges value losses.
var ValueLoss = valueLoss.check()

var valueLoss = &section{
	name:  "value_loss",
	title: "value losses and gradients are those of verl and OpenRLHF",
	doc: `Recomputes ½·max((V − R)², (clip(V, V_old ± c) − R)²) under every aggregation. Compares the loss, ∂loss/∂V and verl's clip
fraction.`,
	source: "options value.*, agg.*; reference/rl ValueLoss, ValueClipped",
	functions: map[string]recompute{
		"verl compute_value_loss": func(c *call) []answer {
			clip := c.value("cliprange_value")
			c.within("cliprange_value", clip, clip > 0, "more than 0")
			return valueAnswers(c, c.valueOptions(verlPPOProfile, native{{Name: "cliprange_value", Value: clip}, {Name: "loss_agg_mode", Value: c.text("loss_agg_mode")}}), true)
		},
		"openrlhf ValueLoss": func(c *call) []answer {
			clip, on := c.num("clip_eps") // null: no clip
			c.within("clip_eps", clip, !on || clip > 0, "more than 0")
			given := native{{Name: "loss_agg_mode", Value: openrlhfMode(c)}, {Name: "value_clip", Value: nil}}
			if on {
				given[1].Value = clip
			}
			return valueAnswers(c, c.valueOptions(openrlhfPPOProfile, given), false)
		},
	},
	faults: valueLossFaults,
}

// valueOptions is the options of a value loss.
func (c *call) valueOptions(profile string, given native) rl.ValueOptions {
	o := c.conventions(profile, given)
	v := o.Value()
	v.Agg = c.counted(v.Agg)
	c.said(o)
	return v
}

func valueAnswers(c *call, o rl.ValueOptions, fraction bool) []answer {
	v, rows, cols := c.grid("vpreds")
	old, returns, mask := c.shaped("values", rows, cols), c.shaped("returns", rows, cols), c.mask("response_mask", rows, cols)
	m := c.meanOf("verl")
	if !c.ok() {
		return nil
	}
	var r rl.ValueResult
	if err := rl.ValueLoss(&r, v, old, returns, mask, rows, cols, o); err != nil {
		return []answer{refused("loss", nil, err)}
	}
	out := []answer{plain("loss", r.Loss), plain("dloss_dvpred", r.DValue...)}
	if !slices.Contains(mask, true) {
		out[1].only = mask // 0/0 spreads over masked cells there
	}
	if fraction {
		x, err := rl.MaskedMean(rl.ValueClipped(nil, v, old, returns, o.Clip), mask, m)
		out = append(out, refused("clipfrac", []float64{x}, err))
	}
	return out
}
