package checkpoint

import (
	"fmt"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// kept reads the rank_pattern of AdaLoRA: for the lora_E of each module a list that says which of its singular values are left
// (peft@0.21.2 tuners/adalora/layer.py RankAllocator).
func kept(o *format.Object) map[string]int {
	members, _ := o.Members["rank_pattern"].(map[string]any)
	out := map[string]int{}
	for name, v := range members {
		list, ok := v.([]any)
		if !ok {
			o.Malformed("rank_pattern", "%.64q is no list of true and false", name)
			return nil
		}
		n := 0
		for _, x := range list {
			if x == true {
				n++
			}
		}
		module, _, _ := strings.Cut(name, ".lora_E")
		out[strings.TrimPrefix(module, peftPrefix)] = n
	}
	return out
}

// adaFindings judges an adapter of AdaLoRA: ΔW = B·diag(E)·A·s/r in every module, with A [r, in], B [out, r] and E [r, 1], of which r is
// what rank_pattern has left of init_r. E begins at 0, A and B at random: an adapter is trained where E is not 0. The scale s is α,
// or init_r where α is 0 (peft@0.21.2 tuners/adalora/layer.py SVDLinear).
func (in *Input) adaFindings(subject string, u *Unit) []check.Result {
	l := u.Lora
	var pair, config, zero []string
	n := 0
	for _, p := range u.pairs {
		if p.a == nil || p.b == nil || len(p.other) != 1 || !strings.Contains(p.other[0].Name, ".lora_E") {
			pair = append(pair, fmt.Sprintf("%s lacks one of A, B and E", p.module))
			continue
		}
		n++
		ra, rb := p.ranks()
		e := p.other[0]
		if s := e.Array.Shape; ra != rb || len(s) != 2 || s[0] != ra || s[1] != 1 {
			pair = append(pair, fmt.Sprintf("%s: A %s, B %s, E %s", p.module, p.a.Array.ShapeString(), p.b.Array.ShapeString(), e.Array.ShapeString()))
			continue
		}
		want, said := l.Kept[p.module]
		switch {
		case said && ra != want:
			config = append(config, fmt.Sprintf("%s has r %d, rank_pattern leaves %d", p.module, ra, want))
		case len(l.Kept) > 0 && !said:
			config = append(config, fmt.Sprintf("%s has r %d, rank_pattern does not name it", p.module, ra))
		case len(l.Kept) == 0 && ra != l.InitR:
			config = append(config, fmt.Sprintf("%s has r %d, init_r is %d", p.module, ra, l.InitR))
		}
		if e.stats != nil && e.stats.zero && ra > 0 {
			zero = append(zero, p.module)
		}
	}
	var out []check.Result
	if len(pair) > 0 {
		out = append(out, fail(subject, "RANK-PAIR", "A, B and E of different ranks: a file put together from two adapters", "%d of %s: %s", len(pair), plural(len(u.pairs), "module"), several(pair)))
	}
	if len(config) > 0 {
		out = append(out, fail(subject, "RANK-CONFIG", "rank_pattern of another step in the configuration", "%d of %s: %s", len(config), plural(n, "module"), several(config)))
	}
	if n > 0 && len(zero) == n {
		out = append(out, fail(subject, "P183", "the adapter was never trained: E starts at 0 and got no gradient", "E is zero in all %s", plural(n, "module")))
	}
	if len(out) == 0 && n > 0 {
		out = append(out, pass(subject, n, "AdaLoRA: A, B and E fit each other and rank_pattern in %s", plural(n, "module")))
	}
	return out
}
