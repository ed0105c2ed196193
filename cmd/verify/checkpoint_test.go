package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/verify/checkpoint"
	"plumbline/verify/report"
)

// goldenFolders copies folders that transformers, PEFT, TRL, verl and OpenRLHF wrote.
func goldenFolders(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("../../golden/checkpoint")))
	return dir
}

// One exit code and one fragment of the reason for each case, from the built program.
func TestCheckpointCases(t *testing.T) {
	dir := goldenFolders(t)
	at := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	put := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(at(name)), 0o755))
		require.NoError(t, os.WriteFile(at(name), []byte(text), 0o644))
	}
	duplicate := func(from, to string) { require.NoError(t, os.CopyFS(at(to), os.DirFS(at(from)))) }
	require.NoError(t, os.Mkdir(at("empty"), 0o755))
	put("data/train.jsonl", "{}\n")
	put("only_config/config.json", "{}")
	duplicate("peft_gptj", "alpha0")
	config, err := os.ReadFile(at("peft_gptj/adapter_config.json"))
	require.NoError(t, err)
	put("alpha0/adapter_config.json", regexp.MustCompile(`"lora_alpha": \d+`).ReplaceAllString(string(config), `"lora_alpha": 0`))
	put("pickled/adapter_config.json", string(config))
	put("pickled/adapter_model.bin", "\x80\x02}.")
	duplicate("peft_gptj", "method")
	put("method/adapter_config.json", strings.Replace(string(config), `"LORA"`, `"TELEPATHY"`, 1))
	duplicate("peft_gptj", "o_proj")
	put("o_proj/adapter_config.json", strings.Replace(string(config), `"q_proj"`, `"q_proj", "o_proj"`, 1))
	duplicate("hf_gptj_sharded", "half")
	require.NoError(t, os.Remove(at("half/model-00002-of-00003.safetensors")))
	duplicate("hf_gptj", "cut")
	require.NoError(t, os.Truncate(at("cut/model.safetensors"), 3000))
	duplicate("peft_gptj", "code")
	put("code/pytorch_model.bin", "\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.")
	duplicate("hf_gptj", "escape")
	put("escape/model.safetensors.index.json", `{"weight_map": {"x": "../hf_gpt2/model.safetensors"}}`)
	duplicate("peft_gptj", "linked")
	require.NoError(t, os.Remove(at("linked/adapter_model.safetensors")))
	require.NoError(t, os.Symlink(at("peft_gptj/adapter_model.safetensors"), at("linked/adapter_model.safetensors")))

	for _, c := range []struct {
		name, args string
		code       int
		fragment   string // of stdout or stderr
	}{
		{"adapter", "peft_gptj", 0, "nothing failed"},
		{"adapter with base", "peft_gptj --base hf_gptj", 0, "nothing failed"},
		{"start of an adapter", "peft_gptj_init", 1, "B is zero in all 8 modules"},
		{"not trained since", "peft_gptj_init --init peft_gptj_init", 1, "UNTRAINED"},
		{"trained since", "peft_gptj --init peft_gptj_init", 0, "nothing failed"},
		{"sharded", "hf_gptj_sharded", 0, "nothing failed"},
		{"int8 against its base", "hf_llama_int8 --base hf_llama_bf16", 0, "quant/codes"},
		{"merged", "peft_gptj --base hf_gptj --merged merged_gptj", 0, "merge/delta"},
		{"merged is the base", "peft_gptj --base hf_gptj --merged hf_gptj", 1, "P086"},
		{"merged with another adapter", "peft_gptj --base hf_gptj --merged merged_rslora", 1, "merge/delta"},
		{"checkpoint of a trainer", "trl_sft_lora --against trl_sft_lora/checkpoint-2", 1, "AGAINST-KIND"},
		{"one checkpoint against itself", "peft_gptj --against peft_gptj", 1, "C9"},
		{"value head in a pickle", "trl_ppo_lora --needs value-head", 0, "value/head"},
		{"value head demanded and not there", "peft_gptj --needs value-head", 1, "C20"},
		{"size", "peft_gptj --size 26MB±15%", 1, "SIZE-DEMAND"},
		{"size of a whole model", "hf_gptj --size 2kB+-15%", 1, "first key without lora_: lm_head"},
		{"most", "peft_gptj --max-size 1kB", 1, "MAX-SIZE"},
		{"another base", "peft_gptj --base hf_llama", 1, "WRONG-BASE"},
		{"base by name", "peft_gptj --model gpt-j-6b", 1, "WRONG-BASE"},
		{"alpha 0", "alpha0", 1, "P086"},
		{"o_proj on GPT-J", "o_proj --base hf_gptj", 1, `the layer of gptj is called "out_proj"`},
		{"a shard is missing", "half", 1, "SHARD-MISSING"},
		{"empty folder", "empty", 1, "EMPTY-FOLDER"},
		{"folder of another kind", "data", 1, "OTHER-KIND"},
		{"configuration without weights", "only_config", 1, "CONFIG-ONLY"},
		{"whole suite by group", "hf_gptj --select tokenizer", 0, "tokenizer/files"},
		{"asked for what does not apply", "hf_gptj --select merge", 6, "nothing it applies to"},
		{"required and not there", "hf_gptj --require merge/delta", 6, "merge/delta"},

		{"cut off", "cut", 4, "BROKEN-SAFETENSORS"},
		{"pickle that runs a command", "code", 4, "os.system"},
		{"index that leads out", "escape", 4, "INDEX-ESCAPE"},
		{"link that leads out", "linked", 4, "LINK-OUT"},
		{"adapter as a pickle", "pickled", 6, "PICKLE-ONLY"},
		{"unknown method", "method", 4, "PEFT-TYPE"},
		{"broken base", "peft_gptj --base cut", 4, "BROKEN-SAFETENSORS"},

		{"no folder", "", 2, "one folder"},
		{"missing", "nowhere", 2, "nowhere"},
		{"file", "hf_gptj/config.json", 2, "want the folder"},
		{"no unit", "peft_gptj --size 26", 2, "no unit"},
		{"half a unit", "peft_gptj --size 26M", 2, "megabytes are MB"},
		{"tolerance without percent", "peft_gptj --size 26MB±3", 2, "percentage"},
		{"most without unit", "peft_gptj --max-size 100", 2, "no unit"},
		{"unknown need", "peft_gptj --needs wings", 2, "value-head"},
		{"unknown model", "peft_gptj --model gptj-6b", 2, "gpt-j-6b"},
		{"merged without base", "peft_gptj --merged merged_gptj", 2, "--base"},
		{"unknown flag", "peft_gptj --bas hf_gptj", 2, "--base"},
		{"rank without plan", "peft_gptj --lora-r 4", 2, "--plan"},

		{"plan", "--plan EleutherAI/gpt-j-6b --lora-r 4 --targets q_proj,v_proj,fc_in,fc_out", 0, "25.69 (24.50)"},
		{"plan of a folder", "--plan hf_gptj --lora-r 4", 0, "parameters"},
		{"plan of an adapter", "--plan peft_gptj", 2, "no config.json"},
		{"plan of an unknown model", "--plan gpt-5", 2, "smollm2-135m"},
		{"plan with o_proj", "--plan gpt-j-6b --targets o_proj", 2, `"out_proj"`},
		{"plan with rank 0", "--plan gpt-j-6b --lora-r -1", 2, "rank -1"},
		{"plan and a folder", "peft_gptj --plan gpt-j-6b", 2, "no folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := verify(t, dir, append([]string{"checkpoint"}, strings.Fields(c.args)...)...)
			require.Equal(t, c.code, code, "%s%s", stdout, stderr)
			require.Contains(t, stdout+stderr, c.fragment)
		})
	}
}

// The table of systems.md A.6.
func TestCheckpointPlan(t *testing.T) {
	stdout, _, code := verify(t, t.TempDir(), "checkpoint", "--plan", "gpt-j-6b")
	require.Zero(t, code)
	for _, row := range []struct {
		targets        string
		r, params      int
		full, sixteenB string
	}{
		{"q_proj,v_proj", 8, 3670016, "14.68 (14.00)", "7.34 (7.00)"},
		{"q_proj,v_proj", 16, 7340032, "29.36 (28.00)", "14.68 (14.00)"},
		{"q_proj,k_proj,v_proj", 8, 5505024, "22.02 (21.00)", "11.01 (10.50)"},
		{"q_proj,k_proj,v_proj", 16, 11010048, "44.04 (42.00)", "22.02 (21.00)"},
		{"q_proj,k_proj,v_proj,out_proj", 8, 7340032, "29.36 (28.00)", "14.68 (14.00)"},
		{"q_proj,k_proj,v_proj,out_proj", 16, 14680064, "58.72 (56.00)", "29.36 (28.00)"},
		{"q_proj,v_proj,fc_in,fc_out", 4, 6422528, "25.69 (24.50)", "12.85 (12.25)"},
		{"q_proj,v_proj,fc_in,fc_out", 8, 12845056, "51.38 (49.00)", "25.69 (24.50)"},
		{"q_proj,k_proj,v_proj,out_proj", 7, 6422528, "25.69 (24.50)", "12.85 (12.25)"},
		{"q_proj,v_proj", 14, 6422528, "25.69 (24.50)", "12.85 (12.25)"},
		{"q_proj,fc_in", 8, 6422528, "25.69 (24.50)", "12.85 (12.25)"},
		{"fc_in,fc_out", 6, 6881280, "27.53 (26.25)", "13.76 (13.12)"},
		{"q_proj,k_proj,v_proj,out_proj,fc_in,fc_out", 4, 8257536, "33.03 (31.50)", "16.52 (15.75)"},
	} {
		want := fmt.Sprintf(`(?m)^ %s +%d +%d +%s +%s *$`, row.targets, row.r, row.params, regexp.QuoteMeta(row.full), regexp.QuoteMeta(row.sixteenB))
		require.Regexp(t, want, stdout)
	}
}

// gptJAdapter writes an adapter of GPT-J-6B's shape with r = 4 on q, v, fc_in and fc_out, and random numbers: 25.69 MB.
func gptJAdapter(t *testing.T, dir string) {
	t.Helper()
	var list []safetensors.Tensor
	m := arch.Find("gpt-j-6b")
	x := uint32(1)
	draw := func(n int) []byte { // float32 between 1 and 2
		raw := make([]byte, 4*n)
		for i := range n {
			x ^= x << 13
			x ^= x >> 17
			x ^= x << 5
			binary.LittleEndian.PutUint32(raw[4*i:], 0x3F800000|x>>9)
		}
		return raw
	}
	for _, l := range m.Linears() {
		if l.Role == arch.Key || l.Role == arch.Output || l.Role == arch.Head {
			continue
		}
		key := "base_model.model." + l.Name
		list = append(list, safetensors.Tensor{Name: key + ".lora_A.weight", DType: format.F32, Shape: []int{4, l.In}, Raw: draw(4 * l.In)},
			safetensors.Tensor{Name: key + ".lora_B.weight", DType: format.F32, Shape: []int{l.Out, 4}, Raw: draw(4 * l.Out)})
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), map[string]string{"format": "pt"}, list))
	config := `{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "fc_in", "fc_out"], "base_model_name_or_path": "EleutherAI/gpt-j-6b", "bias": "none"}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(config), 0o644))
}

// The rule of about 26 MB: an adapter of that shape passes, and the whole model in its place fails with the key that gives
// it away.
func TestCheckpointAbout26MB(t *testing.T) {
	dir := t.TempDir()
	gptJAdapter(t, filepath.Join(dir, "adapter"))
	stdout, stderr, code := verify(t, dir, "checkpoint", "adapter", "--size", "26MB±15%", "-v")
	require.Zero(t, code, "%s%s", stdout, stderr)
	require.Contains(t, stdout, "about 26 MB")
	require.Contains(t, stdout, "6,422,528 parameters")

	// The whole PeftModel in 16 bits: 12.1 GB that are holes on the disk.
	m := arch.Find("gpt-j-6b")
	header := map[string]any{}
	var at int64
	add := func(name string, shape ...int) {
		n := int64(2)
		for _, d := range shape {
			n *= int64(d)
		}
		header["base_model.model."+name] = map[string]any{"dtype": "F16", "shape": shape, "data_offsets": []int64{at, at + n}}
		at += n
	}
	add("transformer.wte.weight", m.Vocab, m.Hidden)
	for i := range m.Layers {
		for _, l := range m.Block(i) {
			if l.IsLinear() {
				add(l.Name+".weight", l.Out, l.In)
			}
		}
		add(fmt.Sprintf("transformer.h.%d.attn.q_proj.lora_A.weight", i), 4, m.Hidden)
		add(fmt.Sprintf("transformer.h.%d.attn.q_proj.lora_B.weight", i), m.Hidden, 4)
	}
	text, err := json.Marshal(header)
	require.NoError(t, err)
	file := filepath.Join(dir, "adapter", "adapter_model.safetensors")
	require.NoError(t, os.WriteFile(file, append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), 0o644))
	require.NoError(t, os.Truncate(file, 8+int64(len(text))+at))
	stdout, _, code = verify(t, dir, "checkpoint", "adapter", "--size", "26MB±15%", "--select", "adapter/keys,weights/size")
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "explanation  A8")
	require.Contains(t, stdout, "first key without lora_: base_model.model.transformer")
}

// The report in JSON is the same for equal runs, and follows the schema.
func TestCheckpointJSON(t *testing.T) {
	dir := goldenFolders(t)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(report.Schema)))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("schema.json", doc))
	schema, err := compiler.Compile("schema.json")
	require.NoError(t, err)
	for _, args := range []string{"trl_sft_lora", "peft_gptj --base hf_gptj --merged hf_gptj", "verl_lora"} {
		a, stderr, _ := verify(t, dir, append([]string{"checkpoint", "--format", "json"}, strings.Fields(args)...)...)
		b, _, _ := verify(t, dir, append([]string{"checkpoint", "--format", "json"}, strings.Fields(args)...)...)
		require.Equal(t, withoutRun(t, a), withoutRun(t, b), args)
		got, err := jsonschema.UnmarshalJSON(strings.NewReader(a))
		require.NoError(t, err, stderr)
		require.NoError(t, schema.Validate(got), args)
	}
}

func TestCheckpointIsListed(t *testing.T) {
	dir := t.TempDir()
	stdout, _, code := verify(t, dir, "list")
	require.Zero(t, code)
	require.Equal(t, len(checkpoint.Suite), strings.Count(stdout, "\n checkpoint "))
	for id, fragment := range map[string]string{"merge/delta": "merged = base + s·B·A", "SHARD-MISSING": "model/index", "H4a": "adapter/targets"} {
		stdout, _, code = verify(t, dir, "explain", id)
		require.Zero(t, code)
		require.Contains(t, stdout, fragment)
	}
	stdout, _, code = verify(t, dir, "faults", "--suite", "checkpoint", "--healthy", "28")
	require.Zero(t, code, stdout)
	require.Contains(t, stdout, "False alarms: 0 of 28")
}
