package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"plumbline/verify/report"
)

// One exit code and one fragment of the reason for each case, from the built program.
func TestVRAMCases(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	write("fits.csv", "index, memory.used [MiB]\n0, 8000 MiB\n0, 8585 MiB\n")
	write("over.csv", "index, memory.used [MiB]\n0, 8000 MiB\n0, 18433 MiB\n")
	write("between.csv", "index, memory.used [MiB]\n0, 8000 MiB\n0, 17500 MiB\n")
	write("two_bases.csv", "memory.used [MiB]\n14758 MiB\n14000 MiB\n")
	write("zero.csv", "index, memory.used [MiB]\n0, 0 MiB\n0, 0 MiB\n")
	write("prose.csv", "NVIDIA-SMI has failed\n")
	write("bert/config.json", `{"model_type": "bert", "hidden_size": 8}`)
	write("broken/config.json", `{"model_type": `)
	write("adapter/adapter_config.json", `{"peft_type": "LORA", "target_modules": ["q_proj"]}`)
	golden, err := filepath.Abs("../../golden/checkpoint")
	require.NoError(t, err)

	const run = "--model gpt-j-6b --int8 --lora-r 16 --targets q_proj,v_proj --batch 4 --seq 424 "
	for _, c := range []struct {
		name, args string
		code       int
		fragment   string
	}{
		{"over the limit", run + "--limit 18GB --stack hf", 1, "--checkpointing                  saves  10.47 GB, then   9.00 GB (fits)"},
		{"with checkpointing", run + "--limit 18GB --stack hf --checkpointing", 0, "nothing failed"},
		{"formulas", run + "--limit 18GB --checkpointing -v", 0, "5,637,144,576 weights of 28 layers · 1 B (int8)"},
		{"both units", run + "--limit 18GB", 1, "19.47 GB (18.13 GiB)"},
		{"the other reading", run + "--limit 19GB", 0, "fits if GB is read as GiB"},
		{"warnings count", run + "--limit 19GB --fail-on warn", 1, "WARN"},
		{"GiB has one reading", run + "--limit 18.1GiB", 1, "a check failed"},
		{"a second copy", run + "--limit 18GB --checkpointing --reference copy --dtype float32", 0, "reference model, a copy of the base"},
		{"the other stack", run + "--limit 12GB --checkpointing --stack plumbline --policy cuda --kv int8", 0, "nothing failed"},
		{"no limit", run, 5, "the plan is not judged"},
		{"no limit, demanded", run + "--require plan/update", 5, "nothing was checked"},
		{"full fine-tuning", "--model qwen2.5-0.5b --batch 1 --seq 128 --limit 80GiB -v", 0, "494,032,768 numbers · 2 moments"},
		{"a name with its owner", "--model Qwen/Qwen1.5-1.8B-Chat --batch 1 --seq 128 --limit 80GiB", 0, "nothing failed"},
		{"a folder", "--model " + golden + "/hf_llama_bf16 --batch 1 --seq 16 --limit 2GB -v", 0, "(bfloat16)"},
		{"int8 over two devices", run + "--limit 18GB --checkpointing --device-map auto --gpus 2", 1, "generation hangs"},
		{"no int8 over two devices", "--model gpt-j-6b --lora-r 16 --targets q_proj --batch 1 --seq 424 --limit 80GB --device-map auto --gpus 2 -v", 0, "--device-map auto "},
		{"measured", run + "--limit 18GB --checkpointing --measured fits.csv", 0, "2 samples of 1 devices"},
		{"measured nothing", run + "--limit 18GB --checkpointing --measured zero.csv", 6, "0 bytes in every sample"},
		{"measured over the limit", run + "--limit 18GB --checkpointing --measured over.csv", 1, "over.csv, line 3"},
		{"measured between the readings", run + "--limit 18GB --checkpointing --measured between.csv", 0, "A9-GIB"},
		{"measured twice the base", run + "--limit 18GB --checkpointing --measured two_bases.csv", 0, "REFERENCE-COPY"},

		{"float32 under autocast", "--model llama-3.2-1b --autocast bfloat16 --batch 2 --seq 512 --limit 80GiB -v", 0, "casts of weights"},
		{"what was not measured under it", run + "--autocast bfloat16 --limit 80GiB", 6, "quantised"},
		{"autocast of 16 bits", "--model llama-3.2-1b --autocast bfloat16 --dtype bfloat16 --batch 2 --seq 512 --limit 80GiB", 6, "on bfloat16"},
		{"autocast to what", "--model llama-3.2-1b --autocast fp8 --batch 2 --seq 512", 2, "bfloat16 or float16"},
		{"PPO", "--model llama-3.2-1b --critic same --reward llama-3.1-8b --dtype bfloat16 --batch 2 --seq 512 --limit 80GiB -v", 0, "reward model: linear weights"},
		{"PPO over the limit", "--model llama-3.2-1b --critic llama-3.1-8b --batch 2 --seq 512 --limit 70GiB", 1, "critic: optimiser state"},
		{"a critic of another architecture", "--model llama-3.2-1b --critic bert --batch 2 --seq 512", 6, "bert"},
		{"no such critic", "--model llama-3.2-1b --critic gpt-j-7b --batch 2 --seq 512", 2, `"gpt-j-6b"`},
		{"an adapter of no critic", "--model llama-3.2-1b --critic-lora-r 8 --batch 2 --seq 512", 2, "needs --critic"},
		{"a critic in GRPO", "--model llama-3.2-1b --critic same --head trl-fused --batch 2 --seq 512", 2, "have no critic"},

		{"no devices", run + "--limit 18GB --gpus 0", 2, "--gpus 0"},
		{"no model", "--batch 4 --seq 424", 2, "gpt-j-6b"},
		{"no batch", "--model gpt-j-6b --seq 424", 2, "--batch 0"},
		{"unknown model", "--model gpt-j-7b --batch 4 --seq 424", 2, `"gpt-j-6b"`},
		{"size without a unit", run + "--limit 18", 2, "18GB (10⁹ bytes) or 18GiB"},
		{"size in bits", run + "--limit 18Gb", 2, "--limit"},
		{"target of another model", "--model gpt-j-6b --lora-r 8 --targets o_proj --batch 4 --seq 424", 2, `did you mean "out_proj"`},
		{"int8 without an adapter", "--model gpt-j-6b --int8 --batch 4 --seq 424", 2, "cannot be trained"},
		{"stack", run + "--stack vllm", 2, "hf or plumbline"},
		{"reference", run + "--reference twice", 2, "adapter"},
		{"cache", run + "--kv fp8", 2, "int8"},
		{"argument", "gpt-j-6b", 2, "no arguments"},
		{"unknown flag", run + "--limits 18GB", 2, "--limit"},
		{"no such samples", run + "--measured nowhere.csv", 2, "nowhere.csv"},
		{"samples that are prose", run + "--measured prose.csv", 4, "line 1"},
		{"another architecture", "--model bert --batch 1 --seq 16", 6, "bert"},
		{"broken configuration", "--model broken --batch 1 --seq 16", 4, "config.json"},
		{"an adapter", "--model adapter --batch 1 --seq 16", 2, "config.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := verify(t, dir, append([]string{"vram"}, strings.Fields(c.args)...)...)
			require.Equal(t, c.code, code, "stdout:\n%s\nstderr:\n%s", stdout, stderr)
			require.Contains(t, stdout+stderr, c.fragment)
			require.NotContains(t, stdout+stderr, "goroutine ", "a stack trace is no answer")
		})
	}

	stdout, _, code := verify(t, dir, append([]string{"vram", "--format", "json"}, strings.Fields(run+"--limit 18GB")...)...)
	require.Equal(t, 1, code)
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(stdout))
	require.NoError(t, err)
	schema, err := jsonschema.UnmarshalJSON(strings.NewReader(string(report.Schema)))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("report", schema))
	s, err := c.Compile("report")
	require.NoError(t, err)
	require.NoError(t, s.Validate(document))
	var r struct {
		Results []struct {
			Check string
			Facts []struct {
				Name  string
				Value float64
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, "plan/update", r.Results[0].Check)
	require.Equal(t, "linear weights", r.Results[0].Facts[0].Name)
	require.Equal(t, 5.637144576, r.Results[0].Facts[0].Value)
}
