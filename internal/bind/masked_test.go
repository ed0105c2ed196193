package bind

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/assets"
	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/train"
)

// copyMasked copies an embedded model into a new folder.
func copyMasked(t testing.TB, name string) string {
	t.Helper()
	dir := t.TempDir()
	root := assets.TinyMasked
	if name == TinyJudge {
		root = assets.TinyJudge
	}
	for _, file := range []string{maskedConfig, maskedVocabulary, WeightsFile} {
		text, err := root.ReadFile(name + "/" + file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), text, 0o644))
	}
	return dir
}

// change sets keys of a model's config.json; nil takes one away.
func change(t testing.TB, dir string, keys map[string]any) {
	path := filepath.Join(dir, maskedConfig)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	all := map[string]any{}
	require.NoError(t, json.Unmarshal(text, &all))
	for k, v := range keys {
		if all[k] = v; v == nil {
			delete(all, k)
		}
	}
	text, err = json.Marshal(all)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o644))
}

func TestOpenMasked(t *testing.T) {
	for _, name := range []string{TinyMasked, TinyJudge} {
		embedded, err := OpenMasked(name, 1)
		require.NoError(t, err)
		folder, err := OpenMasked(copyMasked(t, name), 1)
		require.NoError(t, err)
		require.Equal(t, embedded.weights, folder.weights)
		require.Equal(t, 65, embedded.Characters.Len())
		size := 0
		for _, w := range embedded.weights {
			size += 4 * len(w)
		}
		require.Less(t, size, 1_500_000)

		one, err := OpenMasked(Untrained(name), 1)
		require.NoError(t, err)
		same, err := OpenMasked(Untrained(Untrained(name)), 1)
		require.NoError(t, err)
		other, err := OpenMasked(Untrained(name), 2)
		require.NoError(t, err)
		require.Equal(t, one.weights, same.weights)
		require.NotEqual(t, one.weights, other.weights)
		require.NotEqual(t, one.weights, embedded.weights)
	}
	_, err := OpenGenerator(TinyJudge, 1)
	require.ErrorContains(t, err, "mode=LANGUAGE_MODEL")
	_, err = OpenJudge(TinyMasked, 1)
	require.ErrorContains(t, err, "Judge model must be configured with mode=SEQUENCE_SCORER")
	require.ErrorAs(t, err, new(*train.ConfigError))
}

// A judge begins with the verdict ½; a generator with every token as likely as any other, nearly.
func TestInitialVerdict(t *testing.T) {
	f, err := OpenJudge(Untrained(TinyJudge), 3)
	require.NoError(t, err)
	j, err := NewMasked(f, nil)
	require.NoError(t, err)
	y, cut := j.Score(train.Texts{Rows: 1, Time: 4, IDs: []int{1, 2, 3, 4}})
	require.Zero(t, cut)
	require.InDelta(t, .5, y[0], .2)
}

func TestMaskedRefused(t *testing.T) {
	special := func(key string, id int) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) { change(t, dir, map[string]any{key: id}) }
	}
	for name, c := range map[string]struct {
		model  string
		break_ func(t *testing.T, dir string)
		says   string
		usage  bool // exit code 2, and not 4
	}{
		"cls is pad":     {TinyJudge, special("cls_token_id", 66), "H6: pad_token_id and cls_token_id are both 66", true},
		"cls is mask":    {TinyJudge, special("cls_token_id", 65), "are both 65", true},
		"pad is mask":    {TinyMasked, special("pad_token_id", 65), "mask_token_id and pad_token_id are both 65", true},
		"mask is a char": {TinyMasked, special("mask_token_id", 64), "MASK", false},
		"mask beyond":    {TinyMasked, special("mask_token_id", 67), "67", false},
		"negative":       {TinyMasked, special("pad_token_id", -1), "out of range", false},
		"many layers":    {TinyMasked, special("n_layer", 1<<30), "n_layer", false},
		"more layers":    {TinyMasked, special("n_layer", 3), "transformer.h.2", false},
		"fewer layers":   {TinyMasked, special("n_layer", 1), "is no tensor of the model", false},
		"wide":           {TinyMasked, special("n_embd", 1<<20), "shape", false},
		"odd heads":      {TinyMasked, special("n_head", 3), "n_embd 64", false},
		"mode": {TinyMasked, func(t *testing.T, dir string) { change(t, dir, map[string]any{"mode": "gpt"}) },
			`mode "gpt" is not one of`, false},
		"no mask":       {TinyMasked, func(t *testing.T, dir string) { change(t, dir, map[string]any{"mask_token_id": nil}) }, `no key "mask_token_id"`, false},
		"causal":        {TinyMasked, func(t *testing.T, dir string) { change(t, dir, map[string]any{"attention_type": "causal"}) }, "bidirectional", false},
		"unknown key":   {TinyMasked, func(t *testing.T, dir string) { change(t, dir, map[string]any{"n_layers": 2}) }, `unknown key "n_layers"`, false},
		"no weights":    {TinyMasked, func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, WeightsFile)) }, "no such file", true},
		"no vocabulary": {TinyMasked, func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, maskedVocabulary)) }, "no such file", true},
		"double char": {TinyMasked, func(t *testing.T, dir string) {
			os.WriteFile(filepath.Join(dir, maskedVocabulary), []byte(`{"characters":"aa"}`), 0o644)
		}, "has the ids", false},
		"no json":   {TinyMasked, func(t *testing.T, dir string) { os.WriteFile(filepath.Join(dir, maskedConfig), []byte(`{`), 0o644) }, "config.json", false},
		"truncated": {TinyMasked, func(t *testing.T, dir string) { os.Truncate(filepath.Join(dir, WeightsFile), 1000) }, WeightsFile, false},
		"NaN": {TinyMasked, func(t *testing.T, dir string) {
			rewrite(t, dir, func(name string, x []float64) []float64 { x[0] = math.NaN(); return x }, nil)
		}, "NaN", false},
		"another head": {TinyMasked, func(t *testing.T, dir string) {
			rewrite(t, dir, nil, func(all []safetensors.Tensor) []safetensors.Tensor {
				return append(all, safetensors.Tensor{Name: "lm_head.weight", DType: format.F32, Shape: []int{67, 64}, Data: make([]float64, 67*64)})
			})
		}, "differs from transformer.wte.weight", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyMasked(t, c.model)
			c.break_(t, dir)
			_, err := OpenMasked(dir, 1)
			require.ErrorContains(t, err, c.says)
			require.Contains(t, err.Error(), dir)
			var bad *train.ConfigError
			if c.usage {
				require.True(t, errors.As(err, &bad) || errors.Is(err, os.ErrNotExist), "%v", err)
			} else {
				require.True(t, format.IsMalformed(err), "%v", err)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "ckpt_grpo_100.pt")
	require.NoError(t, os.WriteFile(path, []byte("PK\x03\x04"), 0o644))
	_, err := OpenMasked(path, 1)
	require.ErrorContains(t, err, "a pickled .pt file is not read")
	require.True(t, format.IsMalformed(err))

	// The tied head of a file is read past.
	dir := copyMasked(t, TinyMasked)
	rewrite(t, dir, nil, func(all []safetensors.Tensor) []safetensors.Tensor {
		i := slices.IndexFunc(all, func(s safetensors.Tensor) bool { return s.Name == "transformer.wte.weight" })
		return append(all, safetensors.Tensor{Name: "lm_head.weight", DType: format.F32, Shape: all[i].Shape, Data: all[i].Data})
	})
	_, err = OpenMasked(dir, 1)
	require.NoError(t, err)
}

// rewrite writes the weights of a folder anew.
func rewrite(t testing.TB, dir string, data func(name string, x []float64) []float64, list func([]safetensors.Tensor) []safetensors.Tensor) {
	path := filepath.Join(dir, WeightsFile)
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	var all []safetensors.Tensor
	for name, a := range f.Tensors() {
		x, err := a.Float64s()
		require.NoError(t, err)
		if data != nil {
			x = data(name, x)
		}
		all = append(all, safetensors.Tensor{Name: name, DType: format.F32, Shape: a.Shape, Data: x})
	}
	require.NoError(t, f.Close())
	if list != nil {
		all = list(all)
	}
	if err := safetensors.WriteFile(path, nil, all); err != nil { // a writer that refuses NaN
		for i := range all {
			all[i].DType = format.F64
		}
		require.NoError(t, safetensors.WriteFile(path, nil, all))
	}
}

// The row that a text gets does not depend on the rows beside it, so a model may read an input once for all of its completions.
func TestRowsAlone(t *testing.T) {
	f, err := OpenGenerator(TinyMasked, 1)
	require.NoError(t, err)
	m, err := NewMasked(f, nil)
	require.NoError(t, err)
	a, b := []int{65, 3, 65, 20, 21}, []int{7, 65, 40, 41, 2}
	both := m.Logits(train.Texts{Rows: 3, Time: 5, IDs: append(append(slices.Clone(a), b...), a...)})
	alone := m.Logits(train.Texts{Rows: 1, Time: 5, IDs: a})
	require.Equal(t, alone.Data, both.Data[:len(alone.Data)])
	require.Equal(t, alone.Data, both.Data[2*len(alone.Data):])
	require.Equal(t, []int{3, 5, 67}, []int{both.Rows, both.Time, both.Vocab})
}

// A checkpoint gives the model back, and the reference stays as it was.
func TestMaskedRestore(t *testing.T) {
	f, err := OpenGenerator(TinyMasked, 1)
	require.NoError(t, err)
	m, err := NewMasked(f, nil)
	require.NoError(t, err)
	x := train.Texts{Rows: 1, Time: 3, IDs: []int{65, 30, 65}}
	before := m.Reference(x).Data
	require.Equal(t, before, m.Logits(x).Data)
	for _, p := range m.Params() {
		for i := range p.Data {
			p.Data[i] = float64(float32(p.Data[i] * 1.5))
		}
	}
	changed := m.Logits(x).Data
	require.NotEqual(t, before, changed)
	require.Equal(t, before, m.Reference(x).Data)

	dir := t.TempDir()
	files, err := m.Files()
	require.NoError(t, err)
	for _, file := range files {
		var b strings.Builder
		require.NoError(t, file.Write(&b))
		require.NoError(t, os.WriteFile(filepath.Join(dir, file.Name), []byte(b.String()), 0o644))
	}
	f, err = OpenGenerator(TinyMasked, 1)
	require.NoError(t, err)
	again, err := NewMasked(f, nil)
	require.NoError(t, err)
	require.NoError(t, again.Restore(dir))
	require.Equal(t, changed, again.Logits(x).Data)
	require.Equal(t, m.Fingerprint(), again.Fingerprint())
	// The folder of a checkpoint is a model, too.
	f, err = OpenGenerator(dir, 1)
	require.NoError(t, err)
	trained, err := NewMasked(f, nil)
	require.NoError(t, err)
	require.Equal(t, changed, trained.Logits(x).Data)
	require.NotEqual(t, m.Fingerprint(), trained.Fingerprint())
}

func TestSameCharacters(t *testing.T) {
	a, err := OpenGenerator(TinyMasked, 1)
	require.NoError(t, err)
	b, err := OpenJudge(TinyJudge, 1)
	require.NoError(t, err)
	require.NoError(t, SameCharacters(a, b))
	dir := copyMasked(t, TinyJudge)
	text, err := os.ReadFile(filepath.Join(dir, maskedVocabulary))
	require.NoError(t, err)
	swapped := strings.Replace(strings.Replace(string(text), "xyz", "yxz", 1), "XYZ", "XYZ", 1)
	require.NotEqual(t, string(text), swapped)
	require.NoError(t, os.WriteFile(filepath.Join(dir, maskedVocabulary), []byte(swapped), 0o644))
	c, err := OpenJudge(dir, 1)
	require.NoError(t, err)
	require.ErrorContains(t, SameCharacters(a, c), "other characters")
}

func FuzzMaskedConfig(f *testing.F) {
	for _, root := range []string{"tiny_masked", "tiny_judge"} {
		fs := assets.TinyMasked
		if root == "tiny_judge" {
			fs = assets.TinyJudge
		}
		config, _ := fs.ReadFile(root + "/" + maskedConfig)
		vocabulary, _ := fs.ReadFile(root + "/" + maskedVocabulary)
		f.Add(config, vocabulary)
	}
	f.Add([]byte(`{"n_layer": 1e99}`), []byte(`{"characters": ""}`))
	f.Fuzz(func(t *testing.T, config, vocabulary []byte) {
		c, err := parseMaskedConfig("config.json", config)
		if err != nil {
			var bad *train.ConfigError
			if !format.IsMalformed(err) && !errors.As(err, &bad) {
				t.Fatal(err)
			}
			return
		}
		require.NoError(t, c.Validate())
		if chars, err := parseVocabulary("vocabulary.json", vocabulary, c); err == nil {
			require.LessOrEqual(t, chars.Len(), c.Mask)
		} else if !format.IsMalformed(err) {
			t.Fatal(fmt.Sprint(err))
		}
	})
}
