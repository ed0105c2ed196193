package checkpoint

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/verify/check"
)

// PlanRow is the size of an adapter.
type PlanRow struct {
	Targets []string
	R       int
	Params  int64 // Σ r·(in + out) over the modules that the targets match
}

// PlanRanks are the ranks of the table.
var PlanRanks = []int{4, 6, 7, 8, 12, 14, 16, 32, 64}

// Bytes returns the size of the elements at width bytes per number; a file has a header of about 130 bytes per tensor on
// top.
func (p PlanRow) Bytes(width int) int64 { return p.Params * int64(width) }

// Plan returns the sizes of adapters of m for every set of targets and every rank. It implements the table of systems.md
// A.6. A target that m does not have is a *UsageError that names the nearest layer.
func Plan(m *arch.Model, sets [][]string, ranks []int) ([]PlanRow, error) {
	if sets == nil {
		sets = targetSets(m)
	}
	if ranks == nil {
		ranks = PlanRanks
	}
	var rows []PlanRow
	for _, targets := range sets {
		var perRank int64
		for _, t := range targets {
			hit := false
			for _, l := range m.Adaptable() {
				if endsWith(l.Name, t) {
					hit = true
					perRank += int64(m.Layers) * int64(l.In+l.Out)
				}
			}
			if t == "lm_head" {
				hit = true
				perRank += int64(m.Hidden + m.Vocab)
			}
			if !hit {
				return nil, usage("target %q matches no layer of %s; did you mean %q?", t, m.Name, nearest(m, t))
			}
		}
		for _, r := range ranks {
			if r < 1 || r > 1<<20 {
				return nil, usage("rank %d: want a number between 1 and %d", r, 1<<20)
			}
			rows = append(rows, PlanRow{targets, r, int64(r) * perRank})
		}
	}
	return rows, nil
}

// targetSets are the sets of targets of the table: from query and value to all linear layers.
func targetSets(m *arch.Model) [][]string {
	switch m.Type {
	case "gpt2":
		return [][]string{{"c_attn"}, {"attn.c_attn", "attn.c_proj"}, {"c_attn", "c_fc"}, {"c_fc", "mlp.c_proj"}, {"c_attn", "c_proj", "c_fc"}}
	case "gptj":
		return [][]string{{"q_proj", "v_proj"}, {"q_proj", "k_proj", "v_proj"}, {"q_proj", "k_proj", "v_proj", "out_proj"}, {"q_proj", "v_proj", "fc_in", "fc_out"},
			{"q_proj", "fc_in"}, {"fc_in", "fc_out"}, {"q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"}}
	}
	mlp := []string{"gate_proj", "up_proj", "down_proj"}
	attention := []string{"q_proj", "k_proj", "v_proj", "o_proj"}
	return [][]string{{"q_proj", "v_proj"}, {"q_proj", "k_proj", "v_proj"}, attention, mlp, slices.Concat(attention, mlp)}
}

// FindModel returns the model that a folder with a config.json or a name stands for. An unknown name is a *UsageError that
// lists those that are known.
func FindModel(name string) (*arch.Model, error) {
	f, err := OpenFolder(name)
	if m := arch.Find(name); m != nil && missing(err) { // a folder of that name beats the model that it may be named after
		return m, nil
	}
	if missing(err) {
		return nil, usage("no model %q; did you mean %q? Known are %s, or a folder with a config.json", name, check.Nearest(strings.ToLower(name), arch.Names()), strings.Join(arch.Names(), ", "))
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if len(f.Refused) > 0 {
		return nil, f.Refused[0]
	}
	u := f.model()
	switch {
	case u == nil || u.Config == nil:
		return nil, usage("%s: holds no config.json", name)
	case u.Model == nil:
		return nil, u.Config.OneOf(arch.Types())
	}
	return u.Model, nil
}

// ParseSize reads a demand such as 26MB±15%, 26MB+-15% or 24.5MiB, where 2 % are allowed. bytes reads a size with its unit.
func ParseSize(text string, bytes func(string) (int64, error)) (Size, error) {
	s := Size{Tolerance: 0.02, Text: text}
	amount, tolerance, has := strings.Cut(text, "±")
	if !has {
		amount, tolerance, has = strings.Cut(text, "+-")
	}
	if has {
		var percent float64
		number, ok := strings.CutSuffix(strings.TrimSpace(tolerance), "%")
		if _, err := fmt.Sscanf(number+"\n", "%g\n", &percent); err != nil || !ok || !(percent >= 0 && percent <= 100) {
			return s, usage("%q: the tolerance %q is no percentage; write 26MB±15%%", text, tolerance)
		}
		s.Tolerance = percent / 100
	}
	amount = strings.TrimSpace(amount)
	if amount == "" || strings.Trim(amount, "0123456789.") == "" {
		return s, usage("%q has no unit; write 26MB (10⁶), 26MiB (2²⁰) or 26000000B", text)
	}
	var err error
	if s.Want, err = bytes(amount); err != nil {
		return s, usage("%v (megabytes are MB, mebibytes MiB)", err)
	}
	return s, nil
}
