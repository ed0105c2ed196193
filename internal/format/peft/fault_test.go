package peft

import (
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGoldensCatchFaults plants readings of a configuration that trainers and engines have had, and demands that the
// goldens tell each from PEFT's.
func TestGoldensCatchFaults(t *testing.T) {
	e, _ := expected(t)
	type reading struct {
		scaling func(c *Config, path string) [3]float64
		target  func(c *Config, path string) bool
	}
	right := func(c *Config, path string) [3]float64 {
		r, alpha, s := c.Scaling(path)
		return [3]float64{float64(r), alpha, s}
	}
	with := func(change func(c *Config)) func(c *Config, path string) [3]float64 {
		return func(c *Config, path string) [3]float64 {
			d := *c
			change(&d)
			return right(&d, path)
		}
	}
	patternsOf := func(match func(key, path string) bool) func(c *Config, path string) [3]float64 {
		return func(c *Config, path string) [3]float64 {
			d := *c
			choose := func(list []Pattern, absent float64) float64 {
				if i := slices.IndexFunc(list, func(p Pattern) bool { return match(p.Key, path) }); i >= 0 {
					return list[i].Value
				}
				return absent
			}
			d.R, d.Alpha = int(choose(c.RankPattern, float64(c.R))), choose(c.AlphaPattern, c.Alpha)
			d.RankPattern, d.AlphaPattern = nil, nil
			return right(&d, path)
		}
	}
	for name, fault := range map[string]reading{
		"rsLoRA is ignored (vLLM 6909, TensorRT-LLM 1668)": {scaling: with(func(c *Config) { c.RSLoRA = false })},
		"rsLoRA always":         {scaling: with(func(c *Config) { c.RSLoRA = true })},
		"rank_pattern ignored":  {scaling: with(func(c *Config) { c.RankPattern = nil })},
		"alpha_pattern ignored": {scaling: with(func(c *Config) { c.AlphaPattern = nil })},
		"patterns alphabetical": {scaling: with(func(c *Config) {
			c.RankPattern = slices.SortedFunc(slices.Values(c.RankPattern), func(a, b Pattern) int { return strings.Compare(a.Key, b.Key) })
		})},
		"the last pattern wins":  {scaling: with(func(c *Config) { c.RankPattern = reversed(c.RankPattern) })},
		"patterns are searched":  {scaling: patternsOf(func(key, path string) bool { ok, _ := regexp.MatchString(key, path); return ok })},
		"patterns are names":     {scaling: patternsOf(func(key, path string) bool { return endsWith(path, key) })},
		"patterns are whole":     {scaling: patternsOf(func(key, path string) bool { ok, _ := regexp.MatchString("^(?:"+key+")$", path); return ok })},
		"scale by the default r": {scaling: func(c *Config, path string) [3]float64 { v := right(c, path); v[2] = v[1] / float64(c.R); return v }},
		"scale 1":                {scaling: func(c *Config, path string) [3]float64 { v := right(c, path); v[2] = 1; return v }},
		"scale by r²":            {scaling: func(c *Config, path string) [3]float64 { v := right(c, path); v[2] = v[1] / v[0] / v[0]; return v }},
		"log of the rank": {scaling: func(c *Config, path string) [3]float64 {
			v := right(c, path)
			v[2] = v[1] / math.Log2(1+v[0])
			return v
		}},

		"exclude_modules ignored":     {target: func(c *Config, path string) bool { d := *c; d.Exclude = Targets{}; return d.Target(path) }},
		"layers_to_transform ignored": {target: func(c *Config, path string) bool { d := *c; d.Layers = nil; return d.Target(path) }},
		"layers from one": {target: func(c *Config, path string) bool {
			d := *c
			d.Layers = slices.Clone(c.Layers)
			for i := range d.Layers {
				d.Layers[i]--
			}
			return d.Target(path)
		}},
		"a whole path is asked for its layer, too": {target: func(c *Config, path string) bool {
			d := *c
			d.Targets.List = nil
			for _, n := range c.Targets.List {
				_, last, _ := cutLast(n)
				d.Targets.List = append(d.Targets.List, last)
			}
			return d.Target(path)
		}},
		"targets are parts of a path": {target: func(c *Config, path string) bool {
			return c.Target(path) || slices.ContainsFunc(c.Targets.List, func(n string) bool { return strings.Contains(path, n[1:]) })
		}},
		"an expression is searched": {target: func(c *Config, path string) bool {
			d := *c
			if c.Targets.Regex != "" && !c.Targets.allLinear() {
				d.Targets.Regex = "(?:.*" + c.Targets.Regex + ".*)|.*gate.*"
			}
			return d.Target(path)
		}},
	} {
		if fault.scaling == nil {
			fault.scaling = right
		}
		if fault.target == nil {
			fault.target = (*Config).Target
		}
		var caught []string
		for of, c := range e.Cases {
			a, err := Open(filepath.Join(golden, "cases", of))
			require.NoError(t, err)
			bad := false
			for path, want := range c.Scaling {
				bad = bad || fault.scaling(&a.Config, path) != want
			}
			for _, b := range e.base(c.Base) {
				_, has := c.Scaling[b.Path]
				bad = bad || has != (fault.target(&a.Config, b.Path) && !(a.Config.Targets.allLinear() && (b.Head || b.Embedding)))
			}
			if bad {
				caught = append(caught, of)
			}
			require.NoError(t, a.Close())
		}
		require.NotEmpty(t, caught, "no golden tells %q from what PEFT does", name)
	}
}

func reversed(list []Pattern) []Pattern {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}
