package peft

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// folder makes an adapter folder; a nil file is left out.
func folder(t testing.TB, config []byte, weights []byte) string {
	dir := t.TempDir()
	if config != nil {
		require.NoError(t, os.WriteFile(filepath.Join(dir, ConfigFile), config, 0o644))
	}
	if weights != nil {
		require.NoError(t, os.WriteFile(filepath.Join(dir, WeightsFile), weights, 0o644))
	}
	return dir
}

func config(members string) []byte {
	return []byte(`{"peft_type":"LORA","target_modules":["q"],"r":2,"lora_alpha":4` + members + `}`)
}

func tensor(name string, d format.DType, shape ...int) safetensors.Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	t := safetensors.Tensor{Name: "base_model.model." + name, DType: d, Shape: shape}
	if n > 0 {
		t.Raw = make([]byte, n*d.Size())
	}
	return t
}

func weights(t testing.TB, tensors ...safetensors.Tensor) []byte {
	var b strings.Builder
	require.NoError(t, safetensors.Write(&b, map[string]string{"format": "pt"}, tensors))
	return []byte(b.String())
}

func good() []safetensors.Tensor {
	return []safetensors.Tensor{tensor("m.q.lora_A.weight", format.F32, 2, 5), tensor("m.q.lora_B.weight", format.F32, 3, 2)}
}

func TestConfigRefused(t *testing.T) {
	w := weights(t, good()...)
	repeated := func(s string, n int) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	for name, c := range map[string]struct{ text, err string }{
		"empty":                    {"", "found the end of the data, want an object"},
		"not JSON":                 {"peft_type: LORA", "want an object"},
		"array":                    {"[]", "found an array, want an object"},
		"no type":                  {`{"target_modules":["q"]}`, `peft_type: is absent, want "LORA"`},
		"null type":                {`{"peft_type":null,"target_modules":["q"]}`, "is absent"},
		"unknown type":             {`{"peft_type":"IA3","target_modules":["q"]}`, `peft_type: is "IA3", supported: "LORA"`},
		"type in small letters":    {`{"peft_type":"lora","target_modules":["q"]}`, `is "lora"`},
		"type a number":            {`{"peft_type":1}`, "peft_type: is 1, want a string"},
		"no targets":               {`{"peft_type":"LORA"}`, "target_modules: is absent or empty"},
		"empty targets":            {`{"peft_type":"LORA","target_modules":[]}`, "target_modules: is absent or empty"},
		"targets an object":        {`{"peft_type":"LORA","target_modules":{}}`, "target_modules: is an object, want an array of strings"},
		"target a number":          {`{"peft_type":"LORA","target_modules":["q",1]}`, "target_modules: element 1 is 1, want a string"},
		"duplicate key":            {string(config(`,"r":4`)), `duplicate key "r"`},
		"duplicate pattern":        {string(config(`,"rank_pattern":{"q":1,"q":2}`)), `duplicate key "q"`},
		"rank 0":                   {`{"peft_type":"LORA","target_modules":["q"],"r":0}`, "r: is 0, want an integer in [1, 1048576]"},
		"rank negative":            {`{"peft_type":"LORA","target_modules":["q"],"r":-8}`, "r: is -8"},
		"rank 2^63":                {`{"peft_type":"LORA","target_modules":["q"],"r":9223372036854775808}`, "r: is 9223372036854775808"},
		"rank 8.0":                 {`{"peft_type":"LORA","target_modules":["q"],"r":8.0}`, "r: is 8.0, want an integer"},
		"rank null":                {`{"peft_type":"LORA","target_modules":["q"],"r":null}`, "r: is null, want a number"},
		"alpha null":               {`{"peft_type":"LORA","target_modules":["q"],"lora_alpha":null}`, "lora_alpha: is null"},
		"alpha NaN":                {`{"peft_type":"LORA","target_modules":["q"],"lora_alpha":NaN}`, "found NaN or Infinity, which is not JSON"},
		"alpha 1e999":              {`{"peft_type":"LORA","target_modules":["q"],"lora_alpha":1e999}`, "lora_alpha: is 1e999"},
		"alpha a string":           {`{"peft_type":"LORA","target_modules":["q"],"lora_alpha":"16"}`, `lora_alpha: is "16", want a number`},
		"dropout 2":                {string(config(`,"lora_dropout":2`)), "lora_dropout: is 2"},
		"rank_pattern 0":           {string(config(`,"rank_pattern":{"q":0}`)), `rank_pattern: "q" is 0, want an integer`},
		"rank_pattern 1.5":         {string(config(`,"rank_pattern":{"q":1.5}`)), `rank_pattern: "q" is 1.5`},
		"rank_pattern null":        {string(config(`,"rank_pattern":{"q":null}`)), "rank_pattern.q: is null, want a number"},
		"rank_pattern a list":      {string(config(`,"rank_pattern":["q"]`)), "rank_pattern: is an array, want an object"},
		"alpha_pattern a string":   {string(config(`,"alpha_pattern":{"q":"1"}`)), `alpha_pattern.q: is "1", want a number`},
		"bias all of it":           {string(config(`,"bias":"everything"`)), `bias: is "everything"`},
		"look-ahead":               {string(config(`,"exclude_modules":"(?!lm_head).*"`)), "exclude_modules: \"(?!lm_head).*\" is no regular expression that can be read: invalid or unsupported Perl syntax"},
		"open bracket":             {`{"peft_type":"LORA","target_modules":"q("}`, "target_modules: \"q(\" is no regular expression that can be read: missing closing )"},
		"brackets that fit ours":   {`{"peft_type":"LORA","target_modules":"a)|(b"}`, "target_modules: \"a)|(b\" is no regular expression"},
		"repetitions":              {`{"peft_type":"LORA","target_modules":"` + strings.Repeat("x{1000}", 25) + `"}`, "more than 10000 steps"},
		"classes":                  {string(config(`,"rank_pattern":{"` + strings.Repeat(`\\pL`, 200) + `":1}`)), "more than 10000 steps"},
		"long expressions":         {`{"peft_type":"LORA","target_modules":"` + strings.Repeat("(q)", 3000) + `"}`, "more than 8192 bytes together"},
		"many patterns":            {string(config(`,"modules_to_save":[` + repeated(`"a"`, 17_000) + `]`)), "has 17000 names, want at most 512"},
		"many ranks":               {`{"peft_type":"LORA","target_modules":["q"],"rank_pattern":{` + numberedRanks(17_000) + `}}`, "more than 16384 patterns"},
		"many values":              {string(config(`,"x":[` + repeated(`0`, 66_000) + `]`)), "more than 65536 values"},
		"layers with a pattern":    {`{"peft_type":"LORA","target_modules":"q","layers_to_transform":[1]}`, "goes with a list"},
		"layers_pattern alone":     {string(config(`,"layers_pattern":["h"]`)), "needs layers_to_transform"},
		"layer negative":           {string(config(`,"layers_to_transform":[-1]`)), "layers_to_transform: element 0 is -1"},
		"init a list":              {string(config(`,"init_lora_weights":[]`)), "init_lora_weights: want a boolean or a string"},
		"deep":                     {string(config(`,"x":` + strings.Repeat("[", 100_000))), "nested deeper than"},
		"longer than a megabyte":   {string(config(strings.Repeat(" ", 1<<20))), "has 1048"},
		"use_rslora a number":      {string(config(`,"use_rslora":1`)), "use_rslora: is 1, want a boolean"},
		"base a number":            {string(config(`,"base_model_name_or_path":7`)), "base_model_name_or_path: is 7"},
		"saved module no pattern":  {string(config(`,"modules_to_save":["("]`)), `modules_to_save: "(" is no regular expression`},
		"layers_pattern no regexp": {string(config(`,"layers_to_transform":[0],"layers_pattern":"*"`)), `layers_pattern: "*" is no regular expression`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t, []byte(c.text), w)
			a, err := Open(dir)
			require.ErrorContains(t, err, c.err)
			require.ErrorContains(t, err, filepath.Join(dir, ConfigFile))
			require.True(t, format.IsMalformed(err))
			require.Nil(t, a)
		})
	}
}

func TestFolderRefused(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "absent"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	refused := func(dir, want string) {
		t.Helper()
		a, err := Open(dir)
		require.ErrorContains(t, err, want)
		require.True(t, format.IsMalformed(err), "%v", err)
		require.Nil(t, a)
	}
	dir := folder(t, nil, weights(t, good()...))
	refused(dir, "has no adapter_config.json")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644))
	refused(dir, "has no adapter_config.json; config.json is that of a whole model")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "policy"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "policy", ConfigFile), config(""), 0o644))
	refused(dir, "has no adapter_config.json; there is one in policy")

	dir = folder(t, config(""), nil)
	refused(dir, dir+": has no adapter_model.safetensors")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "adapter_model.bin"), []byte("\x80\x02}."), 0o644))
	refused(dir, "adapter_model.bin: refused: a pickle runs code when it is loaded")
	refused(dir, "python -c 'import torch; from safetensors.torch import save_file; ")

	dir = folder(t, config(""), nil)
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, WeightsFile)))
	refused(dir, "path escapes from parent")
	dir = folder(t, config(""), nil)
	require.NoError(t, os.Mkdir(filepath.Join(dir, WeightsFile), 0o755))
	refused(dir, "is a directory, want a regular file")
	refused(folder(t, config(""), []byte("short")), "has 5 bytes, want at least the 8 of the header length")
}

func TestModulesRefused(t *testing.T) {
	with := func(change func(list []safetensors.Tensor) []safetensors.Tensor) []byte {
		return weights(t, change(good())...)
	}
	add := func(more ...safetensors.Tensor) []byte {
		return with(func(l []safetensors.Tensor) []safetensors.Tensor { return append(l, more...) })
	}
	for name, c := range map[string]struct {
		config  string
		weights []byte
		err     string
	}{
		"empty adapter":            {"", weights(t), "has no tensors: an empty adapter"},
		"zero-length A":            {"", weights(t, tensor("m.q.lora_A.weight", format.F32, 0), good()[1]), "m.q.lora_A.weight: has shape (0,): no elements, as is saved when the parameters are sharded"},
		"zero-length saved module": {`,"modules_to_save":["score"]`, add(tensor("score.weight", format.F32, 0)), "score.weight: has shape (0,)"},
		"A alone":                  {"", weights(t, good()[0]), "m.q.lora_B.weight: is missing"},
		"B alone":                  {"", weights(t, good()[1]), "m.q.lora_A.weight: is missing"},
		"A a vector":               {"", weights(t, tensor("m.q.lora_A.weight", format.F32, 10), good()[1]), "m.q.lora_A.weight: has shape (10,), want (2, in)"},
		"B a vector":               {"", weights(t, good()[0], tensor("m.q.lora_B.weight", format.F32, 6)), "m.q.lora_B.weight: has shape (6,), want (out, 2)"},
		"two ranks":                {"", weights(t, good()[0], tensor("m.q.lora_B.weight", format.F32, 3, 4)), "has A of shape (2, 5) and B of shape (3, 4): two ranks"},
		"another rank":             {`,"rank_pattern":{"m.q":3}`, weights(t, good()...), "m.q.lora_A.weight: has shape (2, 5), but the rank of this module is 3"},
		"transposed factors":       {"", weights(t, tensor("m.q.lora_A.weight", format.F32, 5, 2), tensor("m.q.lora_B.weight", format.F32, 2, 3)), "two ranks"},
		"integers":                 {"", weights(t, tensor("m.q.lora_A.weight", format.I8, 2, 5), good()[1]), "has the element type I8, want a floating-point type"},
		"8 bits":                   {"", eightBits(), "has the element type F8_E4M3"},
		"another prefix":           {"", weights(t, safetensors.Tensor{Name: "m.q.lora_A.weight", DType: format.F32, Shape: []int{1}, Data: []float64{0}}), "m.q.lora_A.weight: is no part of a LoRA adapter"},
		"name of the adapter":      {"", add(tensor("m.q.lora_A.default.weight", format.F32, 2, 5)), "lora_A.default.weight: is no part"},
		"whole model":              {"", add(tensor("m.k.weight", format.F32, 5, 5)), "m.k.weight: is no part of a LoRA adapter"},
		"module that is no target": {"", add(tensor("m.k.lora_A.weight", format.F32, 2, 5), tensor("m.k.lora_B.weight", format.F32, 5, 2)), "belongs to a module that is no target"},
		"DoRA":                     {`,"use_dora":true`, weights(t, good()...), "use_dora: is not supported"},
		"DoRA unsaid":              {"", add(tensor("m.q.lora_magnitude_vector", format.F32, 3)), "belongs to DoRA, but use_dora is false"},
		"PiSSA":                    {`,"init_lora_weights":"pissa_niter_16"`, weights(t, good()...), `init_lora_weights "pissa_niter_16": is not supported`},
		"parameters":               {`,"target_parameters":["w"]`, weights(t, good()...), "target_parameters: is not supported"},
		"aLoRA":                    {`,"alora_invocation_tokens":[1,2]`, weights(t, good()...), "alora_invocation_tokens: is not supported"},
		"bias of B unsaid":         {"", add(tensor("m.q.lora_B.bias", format.F32, 3)), "is a bias of B, but lora_bias is false"},
		"bias of B missing":        {`,"lora_bias":true`, weights(t, good()...), "m.q.lora_B.bias: is missing, but lora_bias is true"},
		"bias of B too long":       {`,"lora_bias":true`, add(tensor("m.q.lora_B.bias", format.F32, 4)), "m.q.lora_B.bias: has shape (4,), want (3,)"},
		"linear and embedding":     {"", add(tensor("m.q.lora_embedding_A", format.F32, 2, 5)), "has the factors of a linear module and those of an embedding"},
		"no module":                {"", weights(t, tensor(".lora_A.weight", format.F32, 2, 5)), ".lora_A.weight: is no part"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := Open(folder(t, config(c.config), c.weights))
			require.NoError(t, err, "Open describes broken adapters")
			defer a.Close()
			modules, err := a.Modules()
			require.ErrorContains(t, err, c.err)
			require.ErrorContains(t, err, a.Path)
			require.True(t, format.IsMalformed(err))
			require.Nil(t, modules)
		})
	}
}

func eightBits() []byte {
	const header = `{"base_model.model.m.q.lora_A.weight":{"dtype":"F8_E4M3","shape":[2,5],"data_offsets":[0,10]}}`
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, 10)...)
}

func TestFactorsRefuseNaN(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for which := range 2 {
			list := good()
			n := len(list[which].Raw) / 4
			list[which].Raw, list[which].Data = nil, make([]float64, n)
			list[which].Data[n-1] = v
			a, err := Open(folder(t, config(""), weights(t, list...)))
			require.NoError(t, err)
			defer a.Close()
			modules, err := a.Modules()
			require.NoError(t, err)
			_, _, err = modules[0].Factors()
			require.ErrorContains(t, err, fmt.Sprintf("element %d is %v, want finite values", n-1, v))
			require.ErrorContains(t, err, list[which].Name)
			require.True(t, format.IsMalformed(err))
		}
	}
}

func TestFitRefused(t *testing.T) {
	a, err := Open(folder(t, config(`,"rank_pattern":{"nothing":3}`), weights(t, good()...)))
	require.NoError(t, err)
	defer a.Close()
	modules, err := a.Modules()
	require.NoError(t, err)
	linear := func(path string, in, out int) Base { return Base{Path: path, In: in, Out: out} }
	for name, c := range map[string]struct {
		base []Base
		err  string
	}{
		"another width":        {[]Base{linear("m.q", 4096, 3)}, "m.q: is for a weight with 5 inputs and 3 outputs, the base has 4096 and 3: an adapter for another base"},
		"transposed base":      {[]Base{linear("m.q", 3, 5)}, "the base has 3 and 5"},
		"no such module":       {[]Base{linear("m.out_proj", 5, 3), linear("m.q_proj", 5, 3)}, "the base has no such module: an adapter for another base; it has out_proj, q_proj"},
		"deeper base":          {[]Base{linear("m.q", 5, 3), linear("n.q", 5, 3)}, "base_model.model.n.q.lora_A.weight: is missing: the module is a target"},
		"linear for embedding": {[]Base{{Path: "m.q", In: 5, Out: 3, Embedding: true}}, "has the factors of a linear module, in the base it is an embedding"},
		"no base":              {nil, "the base has no such module"},
	} {
		notes, err := a.Fit(modules, c.base)
		require.ErrorContains(t, err, c.err, name)
		require.True(t, format.IsMalformed(err), name)
		require.Nil(t, notes, name)
	}
	notes, err := a.Fit(modules, []Base{linear("m.q", 5, 3), linear("m.k", 5, 3)})
	require.NoError(t, err)
	require.Equal(t, []string{`rank_pattern: "nothing" matches no module with an adapter`}, notes)

	a.Config.Targets.List = []string{"q", "o_proj"} // GPT-J's is out_proj
	notes, err = a.Fit(modules, []Base{linear("m.q", 5, 3), linear("m.out_proj", 5, 3)})
	require.NoError(t, err)
	require.Contains(t, notes, `target_modules: "o_proj" matches no module of the base; it has q, out_proj`)
}

func TestNotes(t *testing.T) {
	dir := folder(t, []byte(`{"peft_type":"LORA","target_modules":["q"],"r":2,"lora_aplha":4}`), weights(t, good()...))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pytorch_model.bin"), []byte("x"), 0o644))
	a, err := Open(dir)
	require.NoError(t, err)
	defer a.Close()
	file := filepath.Join(dir, ConfigFile)
	require.Equal(t, []string{
		file + " has no lora_alpha: PEFT's default is 8",
		file + `: "lora_aplha" is no key of a LoRA configuration; PEFT ignores it`,
		"pytorch_model.bin is a pickle and was not read",
	}, a.Notes)
	require.Equal(t, float64(8), a.Config.Alpha)
}

// Expressions that take long for one name, or lists that are compared with every part of it, and many long names.
func TestTime(t *testing.T) {
	started := time.Now()
	var tensors []safetensors.Tensor
	for i := range 200 {
		tensors = append(tensors, tensor(fmt.Sprintf("%s%d.q.lora_A.weight", strings.Repeat("a.", 450), i), format.F32, 0))
	}
	_, err := Open(folder(t, []byte(`{"peft_type":"LORA","target_modules":"(((a|b|c?){9}){9}){9}x"}`), weights(t, tensors...)))
	require.True(t, format.IsMalformed(err), "%v", err)
	require.ErrorContains(t, err, "regular expressions")

	_, _, err = ParseConfig("f", config(`,"modules_to_save":["s`+strings.Repeat(`","s`, maxSaved)+`"]`))
	require.ErrorContains(t, err, "has 513 names")
	var names strings.Builder
	for i := range maxSaved - 1 {
		fmt.Fprintf(&names, `,"s.%d"`, i)
	}
	a, err := Open(folder(t, config(`,"modules_to_save":["s"`+names.String()+`]`), weights(t, tensors...)))
	require.NoError(t, err)
	defer a.Close()
	for i := range a.Tensors {
		a.Config.Target(a.Tensors[i].Module)
	}

	a, err = Open(folder(t, config(`,"exclude_modules":"`+strings.Repeat("(a|b)?", 1000)+`x"`), weights(t, good()...)))
	require.NoError(t, err)
	defer a.Close()
	base := make([]Base, 100_000)
	for i := range base {
		base[i].Path = strings.Repeat("a", 100)
	}
	_, err = a.Fit(nil, base)
	require.ErrorContains(t, err, "regular expressions")
	require.Less(t, time.Since(started), time.Minute)
}

// numberedRanks returns n members of a rank_pattern.
func numberedRanks(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"q%d":1`, i)
	}
	return b.String()[1:]
}
