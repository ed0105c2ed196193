package peft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime/metrics"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format"
)

// drawContents draws an adapter of a model with layers layers.N.{q, k, o}.
func drawContents(t *rapid.T) Contents {
	names := []string{"q", "k", "o"}
	c := Contents{
		Config: Config{
			BaseModel: rapid.SampledFrom([]string{"", "base", "a \"b\" <é>"}).Draw(t, "base"),
			R:         rapid.IntRange(1, 4).Draw(t, "r"),
			Alpha:     rapid.Float64Range(-8, 8).Draw(t, "alpha"),
			RSLoRA:    rapid.Bool().Draw(t, "rslora"),
			Dropout:   rapid.SampledFrom([]float64{0, 0.05}).Draw(t, "dropout"),
			Targets:   Targets{List: []string{"q", "k"}},
			Bias:      "none",
		},
		Fingerprint: rapid.SampledFrom([]string{"", "ab12"}).Draw(t, "fingerprint"),
		DType:       rapid.SampledFrom([]format.DType{format.F64, format.F32, format.F16, format.BF16}).Draw(t, "dtype"),
	}
	if rapid.Bool().Draw(t, "expression") {
		c.Config.Targets = Targets{Regex: `.*\.[qk]`}
	}
	keys := []string{"q", `layers\.0\..*`, "k", "layers.1.q", ".*"}
	for _, k := range rapid.Permutation(keys).Draw(t, "keys")[:rapid.IntRange(0, 4).Draw(t, "patterns")] {
		c.Config.RankPattern = append(c.Config.RankPattern, Pattern{k, float64(rapid.IntRange(1, 5).Draw(t, "rank"))})
		c.Config.AlphaPattern = append(c.Config.AlphaPattern, Pattern{k, rapid.Float64Range(-2, 2).Draw(t, "alpha")})
	}
	for l := range rapid.IntRange(1, 2).Draw(t, "layers") {
		for _, n := range names[:2] {
			f := Factors{Path: fmt.Sprintf("layers.%d.%s", l, n), In: rapid.IntRange(1, 5).Draw(t, "in"), Out: rapid.IntRange(1, 5).Draw(t, "out")}
			r, _, _ := c.Config.Scaling(f.Path)
			f.A = rapid.SliceOfN(rapid.Float64Range(-4, 4), r*f.In, r*f.In).Draw(t, "A")
			f.B = rapid.SliceOfN(rapid.Float64Range(-4, 4), r*f.Out, r*f.Out).Draw(t, "B")
			c.Factors = append(c.Factors, f)
		}
	}
	return c
}

// What is written is read again as the same, rounded to the type it was stored in; and writing what was read gives the
// same bytes.
func TestWriteReadIdentity(t *testing.T) {
	root := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		c := drawContents(t)
		n++
		first, second := filepath.Join(root, fmt.Sprint(n)), filepath.Join(root, fmt.Sprint(n, "again"))
		require.NoError(t, Write(first, c))
		a, err := Open(first)
		require.NoError(t, err)
		defer a.Close()
		require.Empty(t, a.Notes)
		require.Equal(t, c.Fingerprint, a.Fingerprint)
		got := a.Config
		got.expressions, got.targets, got.exclude, got.steps = nil, nil, nil, 0
		require.Equal(t, c.Config, got)
		modules, err := a.Modules()
		require.NoError(t, err)
		require.Len(t, modules, len(c.Factors))
		again := Contents{Config: a.Config, Fingerprint: a.Fingerprint, DType: c.DType}
		slices.SortFunc(c.Factors, func(x, y Factors) int { return compare(x.Path, y.Path) })
		for i, m := range modules {
			f := c.Factors[i]
			require.Equal(t, f.Path, m.Path)
			require.Equal(t, []int{f.In, f.Out}, []int{m.In, m.Out})
			fa, fb, err := m.Factors()
			require.NoError(t, err)
			require.Equal(t, rounded(f.A, c.DType), fa)
			require.Equal(t, rounded(f.B, c.DType), fb)
			again.Factors = append(again.Factors, Factors{Path: m.Path, In: m.In, Out: m.Out, A: fa, B: fb})
		}
		require.NoError(t, Write(second, again))
		for _, file := range []string{ConfigFile, WeightsFile} {
			x, err := os.ReadFile(filepath.Join(first, file))
			require.NoError(t, err)
			y, err := os.ReadFile(filepath.Join(second, file))
			require.NoError(t, err)
			require.Equal(t, string(x), string(y))
		}
	})
}

func compare(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

func rounded(v []float64, d format.DType) []float64 {
	out := make([]float64, len(v))
	format.Decode(out, format.Encode(nil, v, d), d, binary.LittleEndian)
	return out
}

// Plain patterns are matched without package regexp; both ways must agree, and plain ones are the only that skip it.
func TestPlainPatterns(t *testing.T) {
	part := rapid.StringOfN(rapid.RuneFrom([]rune("ab.1_")), 0, 6, -1)
	rapid.Check(t, func(t *rapid.T) {
		text, path := part.Draw(t, "pattern"), part.Draw(t, "path")
		if rapid.Bool().Draw(t, "end") && len(path) > 0 {
			text = path[rapid.IntRange(0, len(path)-1).Draw(t, "at"):]
		}
		for _, f := range []form{whole, ending, within} {
			require.True(t, plain(text))
			want := regexp.MustCompile(f.expression(text)).MatchString(path)
			require.Equal(t, want, pattern{f, text}.find(path), "%d: %q in %q", f, text, path)
		}
	})
	for _, text := range []string{"a*", "(a)", "a|b", `a\.b`, "[a]", "a?", "^a", "a$", "a{2}", "a+"} {
		require.False(t, plain(text), text)
	}
}

// The set of a list that was checked and the list itself name the same modules.
func TestNamed(t *testing.T) {
	part := rapid.StringOfN(rapid.RuneFrom([]rune("ab.")), 0, 5, -1)
	rapid.Check(t, func(t *rapid.T) {
		list := Targets{List: rapid.SliceOfN(part, 0, 4).Draw(t, "list")}
		path := part.Draw(t, "path")
		require.Equal(t, named(nil, list.List, path), named(list.set(), nil, path))
	})
}

func TestWriteRefused(t *testing.T) {
	base := func() Contents {
		return Contents{Config: Config{R: 2, Alpha: 4, Bias: "none", Targets: Targets{List: []string{"q"}}}, DType: format.F32,
			Factors: []Factors{{Path: "m.q", In: 2, Out: 1, A: []float64{1, 2, 3, 4}, B: []float64{5, 6}}}}
	}
	for name, c := range map[string]struct {
		change func(c *Contents)
		err    string
	}{
		"no factors":     {func(c *Contents) { c.Factors = nil }, "an adapter without factors"},
		"A too short":    {func(c *Contents) { c.Factors[0].A = nil }, `module "m.q": A has 0 elements, (2, 2) needs 4`},
		"B too long":     {func(c *Contents) { c.Factors[0].B = make([]float64, 4) }, `B has 4 elements, (1, 2) needs 2`},
		"rank by rule":   {func(c *Contents) { c.Config.RankPattern = []Pattern{{"q", 3}} }, "A has 4 elements, (3, 2) needs 6"},
		"no target":      {func(c *Contents) { c.Factors[0].Path = "m.k" }, `module "m.k" is no target`},
		"NaN":            {func(c *Contents) { c.Factors[0].B[1] = math.NaN() }, "element 1 of a factor is NaN"},
		"twice":          {func(c *Contents) { c.Factors = append(c.Factors, c.Factors[0]) }, `module "m.q" stands twice`},
		"pattern twice":  {func(c *Contents) { c.Config.AlphaPattern = []Pattern{{"x", 1}, {"x", 2}} }, `pattern "x" stands twice`},
		"no rank":        {func(c *Contents) { c.Config.R = 0 }, "r: is 0, want at least 1"},
		"alpha infinite": {func(c *Contents) { c.Config.Alpha = math.Inf(1) }, "lora_alpha: is +Inf"},
		"integers":       {func(c *Contents) { c.DType = format.I64 }, "factors of element type"},
		"variant":        {func(c *Contents) { c.Config.Variant = "use_dora" }, "only plain LoRA"},
		"look-ahead":     {func(c *Contents) { c.Config.Targets = Targets{Regex: "(?=q)"} }, "no regular expression"},
		"no width":       {func(c *Contents) { c.Factors[0].In = 0 }, "has 0 inputs and 1 outputs"},
	} {
		b := base()
		c.change(&b)
		dir := filepath.Join(t.TempDir(), "adapter")
		require.ErrorContains(t, Write(dir, b), c.err, name)
		require.NoDirExists(t, dir, name)
	}
	dir := filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, Write(dir, base()))
	require.NoError(t, Write(dir, base()), "an adapter is replaced")
	require.Error(t, Write(filepath.Join(dir, "absent", "adapter"), base()), "of folders the last one is made only")
}

func allocated(f func()) int64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	before := s[0].Value.Uint64()
	f()
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - before)
}

func FuzzConfig(f *testing.F) {
	list, err := filepath.Glob(filepath.Join(golden, "cases", "*", ConfigFile))
	require.NoError(f, err)
	require.NotEmpty(f, list)
	for _, name := range list {
		b, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add(config(`,"rank_pattern":{"a.*":1,"(b|c){3}":2},"layers_to_transform":[0],"layers_pattern":["h","\\d"]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var c Config
		var err error
		got := allocated(func() { c, _, err = ParseConfig("f", text) })
		require.LessOrEqual(t, got, 4*int64(len(text))+16<<20)
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			return
		}
		const path = "model.layers.1.self_attn.q_proj"
		c.Target(path)
		r, alpha, s := c.Scaling(path)
		require.GreaterOrEqual(t, r, 1)
		if c.RSLoRA {
			require.Equal(t, alpha/math.Sqrt(float64(r)), s)
		} else {
			require.Equal(t, alpha/float64(r), s)
		}
		if c.Variant != "" || c.LoraBias || c.Bias != "none" {
			return
		}
		b, err := c.json() // what is written is read again as the same
		require.NoError(t, err)
		again, _, err := ParseConfig("f", b)
		require.NoError(t, err, "%s", b)
		c.expressions, c.targets, c.exclude, c.steps = nil, nil, nil, 0
		again.expressions, again.targets, again.exclude, again.steps = nil, nil, nil, 0
		require.Equal(t, c, again)
	})
}

// FuzzAdapter reads folders of any content: what Modules accepts is whole, and its factors can be read.
func FuzzAdapter(f *testing.F) {
	for _, name := range []string{"list", "bias", "embedding", "saved"} {
		c, err := os.ReadFile(filepath.Join(golden, "cases", name, ConfigFile))
		require.NoError(f, err)
		w, err := os.ReadFile(filepath.Join(golden, "cases", name, WeightsFile))
		require.NoError(f, err)
		f.Add(c, w)
	}
	f.Add(config(""), weights(f, good()...))
	f.Add(config(""), weights(f))
	f.Fuzz(func(t *testing.T, config, tensors []byte) {
		dir := folder(t, config, tensors)
		a, err := Open(dir)
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			return
		}
		defer a.Close()
		modules, err := a.Modules()
		if err != nil {
			require.True(t, format.IsMalformed(err), "%v", err)
			return
		}
		n := len(a.Saved())
		for _, m := range modules {
			require.True(t, a.Config.Target(m.Path))
			fa, fb, err := m.Factors()
			if err != nil {
				require.True(t, format.IsMalformed(err), "%v", err)
			} else {
				require.Equal(t, []int{m.R * m.In, m.Out * m.R}, []int{len(fa), len(fb)})
			}
			if n += 2; m.Bias != nil {
				n++
			}
		}
		require.Equal(t, len(a.Tensors), n, "a tensor belongs to nothing")
	})
}

// Write writes an adapter into the folder at path, which is made if it is not there, so that peft@0.21.2 loads it whole:
// PeftModel.from_pretrained(base, path). Everything is checked before the first byte is written: that every module is a
// target, that the factors have the rank of the configuration, and that all values are finite. Each of the two files is
// written whole or not at all.
func Write(path string, c Contents) error {
	text, weights, err := c.encode(filepath.Join(path, ConfigFile))
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Mkdir(path, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := format.WriteFile(filepath.Join(path, WeightsFile), weights); err != nil {
		return err
	}
	return format.WriteFile(filepath.Join(path, ConfigFile), func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}
