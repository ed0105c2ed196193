package convention

import (
	"fmt"
	"slices"
	"strconv"

	"plumbline/reference/rl"
)

// pairSum is what TRL's DPOConfig says with a list of losses: a weighted sum of preference losses, and the weight of sft, the cross-entropy of
// the chosen answers.
type pairSum struct {
	losses rl.DPOSum
	sft    float64
}

// readPairSum reads loss_type, a list of two or more words, and loss_weights, a number for each or null, which is 1. Of ipo and sigmoid_norm
// TRL 1.16 divides the log-ratios by the tokens of the answers. ok is false where it is no list of its losses, or of sft alone.
func readPairSum(types, weights any) (s pairSum, ok bool) {
	list, _ := types.([]any)
	numbers, given := weights.([]any)
	if len(list) < 2 || given && len(numbers) != len(list) || !given && weights != nil {
		return s, false
	}
	for i, e := range list {
		word, _ := e.(string)
		weight := 1.0
		if given {
			if weight, ok = numbers[i].(float64); !ok || !finite(weight) {
				return s, false
			}
		}
		t := rl.DPOTerm{Weight: weight, PerToken: word == "ipo" || word == "sigmoid_norm"}
		var err error
		switch t.Kind, err = rl.ParseDPOKind(word); {
		case word == "sft":
			s.sft += weight
			continue
		case word == "sigmoid_norm":
			t.Kind = rl.DPOSigmoid
		case err != nil || t.Kind == rl.DPOORPO:
			return s, false
		}
		s.losses = append(s.losses, t)
	}
	return s, len(s.losses) > 0
}

// single reports whether the sum is one preference loss, with the weight 1.
func (s pairSum) single() bool { return len(s.losses) == 1 && s.losses[0].Weight == 1 }

// sumEffect returns the value of an effect WHAT@OTHER, v the value of its own name: of a loss_type and the loss_weights beside it the loss, whether it is
// per token, the sum, or the weight of sft; of a label_smoothing and the loss_type beside it what the losses read of it.
func sumEffect(what string, v, other any) (string, error) {
	types, weights := v, other
	if what == "$smoothing" {
		types, weights = other, nil
	}
	s, ok := readPairSum(types, weights)
	if !ok {
		return "", fmt.Errorf("%s and %s are no losses and a weight for each", showValue(types), showValue(weights))
	}
	switch what {
	case "$loss":
		if s.single() {
			return s.losses[0].Kind.String(), nil
		}
		return "–", nil
	case "$per_token":
		if s.single() {
			return strconv.FormatBool(s.losses[0].PerToken), nil
		}
		return "–", nil
	case "$sum":
		if s.single() {
			return "none", nil
		}
		return s.losses.String(), nil
	case "$sft":
		return number(s.sft), nil
	}
	if slices.ContainsFunc(s.losses, func(t rl.DPOTerm) bool { return t.Kind != rl.DPOSigmoid && t.Kind.Smooths() }) {
		return showValue(v), nil
	}
	return "0", nil
}
