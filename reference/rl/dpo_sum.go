package rl

import (
	"math"
	"strconv"
	"strings"
)

// DPOTerm is a preference loss in a weighted sum of several.
type DPOTerm struct {
	Weight   float64
	Kind     DPOKind
	PerToken bool // of log-ratios divided by the tokens of their answers
}

// DPOSum is a weighted sum of preference losses (TRL 1.16 loss_type with loss_weights; Wang et al. 2024, arXiv 2411.10442, Eq. 4).
type DPOSum []DPOTerm

// overTokens ends the word of a loss of log-ratios per token: TRL's sigmoid_norm, and its ipo.
const overTokens = "_norm"

// ParseDPOSum reads a sum as 0.8*sigmoid+0.2*bco_pair: words of dpo.loss but orpo, with _norm behind where log-ratios are divided by tokens.
func ParseDPOSum(s string) (sum DPOSum, err error) {
	for part := range strings.SplitSeq(s, "+") {
		number, word, ok := strings.Cut(part, "*")
		t := DPOTerm{}
		t.Weight, err = strconv.ParseFloat(number, 64)
		if !ok || err != nil || math.IsNaN(t.Weight) || math.IsInf(t.Weight, 0) {
			return nil, &OptionError{Option: "dpo.mix", Value: part, Allowed: []string{"WEIGHT*LOSS"}}
		}
		word, t.PerToken = strings.CutSuffix(word, overTokens)
		if t.Kind, err = ParseDPOKind(word); err != nil {
			return nil, err
		}
		if t.Kind == DPOORPO {
			return nil, &OptionError{Option: "dpo.mix", Value: word, Allowed: []string{"losses with a reference"}}
		}
		sum = append(sum, t)
	}
	return sum, nil
}

// String prints a sum as [ParseDPOSum] reads it.
func (s DPOSum) String() string {
	var parts []string
	for _, t := range s {
		word := t.Kind.String()
		if t.PerToken {
			word += overTokens
		}
		parts = append(parts, strconv.FormatFloat(t.Weight, 'f', -1, 64)+"*"+word)
	}
	return strings.Join(parts, "+")
}
