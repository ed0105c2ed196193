package checkpoint

import (
	"fmt"

	"plumbline/verify/check"
)

// Start checks that an adapter of AdaLoRA begins as the base.
var Start = &check.Check[*Input]{
	Name: "adapter/init",
	Doc: `an adapter of AdaLoRA begins as the base: E is 0 in --init

AdaLoRA adds B·diag(E)·A·s/r, with A and B drawn at random: with E ≠ 0 the first step is that of another model, and a KL against the
reference is not 0. An adapter whose ranks have been cut (rank_pattern) goes on from an earlier training, and its E says nothing.
LoRA's own --init is not judged: B ≠ 0 may be the end of an earlier training.`,
	Source: "Zhang et al. 2023, section 4.1: Λ is initialised with zero; peft@0.12 tuners/adalora/layer.py, PEFT#1884",
	Fix:    "set E to 0 before the first step, or start with PEFT 0.12 or later",
	Run: func(in *Input) ([]check.Result, error) {
		if in.Init == nil {
			return nil, nil
		}
		u := in.Init.adapter()
		if u == nil || u.Lora == nil || u.Lora.Type != "ADALORA" || len(u.Lora.Kept) > 0 {
			return nil, nil
		}
		var moved []string
		n, largest := 0, 0.0
		for _, p := range u.pairs {
			for _, t := range p.other {
				e, err := t.Array.Float64s()
				if err != nil {
					return nil, err
				}
				most := 0.0
				for _, x := range e {
					most = max(most, x, -x) // NaN stays
				}
				n += len(e)
				if !(most == 0) {
					moved = append(moved, p.module)
					largest = max(largest, most)
				}
			}
		}
		subject := in.Init.at(u)
		switch {
		case n == 0:
			return nil, nil // adapter/config says what lacks E
		case len(moved) > 0:
			r := fail(subject, "ADALORA-E-INIT", "AdaLoRA begins as another function than the base: E was drawn at random", "E is not 0 in %d of %s before training: %s", len(moved), plural(len(u.pairs), "module"), several(moved))
			r.Where, r.Compared = fmt.Sprintf("largest |E| %.4g", largest), n
			return []check.Result{r}, nil
		}
		return []check.Result{pass(subject, n, "E is 0 in %s", plural(len(u.pairs), "module"))}, nil
	},
}
