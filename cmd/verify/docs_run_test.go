package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/cmd/internal/documented"
	"plumbline/internal/cases"
)

// shownCommands are the commands of verify in the README and the pages as they are pasted, with what they end in, a text that they print, and the
// files that they name: PATH=SOURCE, from the root of the repository. The runs of diff.md are those of [diffWorkspace].
const shownCommands = `
demo | 0 | 7 of 7 as expected
log train.log | 0 | nothing impossible, nothing unhealthy | train.log=verify/dump/testdata/runs/grpo_causal/log.txt
export trl > hook.py | 0 | 
dump run/ | 0 | agree with TRL 1.16.0 | run=golden/demo/clean
explain --bugs > docs/bugs.md | 0 | | docs/locks.md=docs/locks.md
explain AGG-PAD-DENOMINATOR | 0 | padded width
checkpoint out/adapter --base models/gpt-j-6b --size 26MB±15% | 1 | SIZE-DEMAND | out/adapter=golden/checkpoint/peft_gptj models/gpt-j-6b=golden/checkpoint/hf_gptj
checkpoint out/adapter --base models/qwen --merged out/merged | 0 | merge/delta | out/adapter=golden/checkpoint/peft_gptj models/qwen=golden/checkpoint/hf_gptj out/merged=golden/checkpoint/merged_gptj
checkpoint out/checkpoint-200 --against out/checkpoint-100 | 1 | C9 | out/checkpoint-200=golden/checkpoint/peft_gptj out/checkpoint-100=golden/checkpoint/peft_gptj
checkpoint out/step_100 --needs value-head,optimizer,rng,tokenizer | 1 | C20 | out/step_100=golden/checkpoint/peft_gptj
checkpoint out/int8 --base models/gpt-j-6b | 0 | quant/codes | out/int8=golden/checkpoint/hf_llama_int8 models/gpt-j-6b=golden/checkpoint/hf_llama_bf16
checkpoint --plan gpt-j-6b | 0 | q_proj
diff run | 0 | this is rounding, no more than that of bfloat16
diff run --tokenizer tokenizer.json | 0 | this is rounding
diff filled | 1 | GEN-ZERO
diff stale | 1 | OTHER-WEIGHTS
diff copied | 5 | not two measurements
diff run again | 0 | equal bit by bit
diff run other --tensor logp_old | 1 | logp_old of step 1
diff run again --relation repeat | 0 | equal bit by bit
diff run again --relation partition | 0 | equal bit by bit
diff run again --relation padding | 0 | equal bit by bit
diff run again --relation permute | 0 | equal bit by bit
diff run again --relation resume | 0 | equal bit by bit
diff run other --relation toggle=logp.temperature | 0 | changes logp_old
diff run again --relation toggle=logp.temperature | 1 | OPTION-IGNORED
diff run other --relation repeat | 1 | DROPOUT-ON
dump run/ --profile trl-grpo@1.16 | 0 | agree with TRL 1.16.0 | run=golden/demo/clean
dump run/ --profile none | 0 | | run=golden/demo/clean
dump run/step_000003.safetensors --set adv.ddof=0 | 6 | input/complete | run/step_000003.safetensors=golden/demo/clean/step_0003_mb_0.safetensors
dump run/ --first-step | 0 | agree with TRL 1.16.0 | run=golden/demo/clean
profiles trl-grpo@1.16 | 0 | adv.ddof
faults --dump run/ | 0 | bugs would show in this dump | run=golden/demo/clean
log run/ | 0 | | run=verify/dump/testdata/runs/grpo_causal
explain approx_kl | 0 | approx_kl
ops | 0 | nothing failed
ops --run Gemm --cases 10000 | 0 | 
ops --faults | 0 | 
ops --require avx512vnni | 0 | 
projection --basis q.npy | 0 | nothing failed | q.npy=golden/projection/q.npy
projection --basis q.npy --grad projected.npy | 0 | nothing failed | q.npy=golden/projection/q.npy projected.npy=golden/projection/g_projected.npy
projection --basis q.npy --grad raw.npy --projected projected.npy | 0 | nothing failed | q.npy=golden/projection/q.npy raw.npy=golden/projection/g.npy projected.npy=golden/projection/g_projected.npy
projection --basis q.npy --update delta.npy | 0 | nothing failed | q.npy=golden/projection/q.npy delta.npy=golden/projection/g_projected.npy
projection --basis q.npy --adapter out/step_100 --init out/init | 1 | H3a | q.npy=golden/projection/q.npy out/step_100=golden/projection/lora_leak out/init=golden/projection/lora_init
projection --basis broken.npy --orthonormalize repaired.npy | 1 | repaired.npy | broken.npy=golden/projection/q_column_scaled.npy
projection --basis q.npy --grad raw.npy --plot projection_viz.png | 1 | projection_viz.png | q.npy=golden/projection/q.npy raw.npy=golden/projection/g.npy
dump run/ --format html -o report.html | 0 | | run=golden/demo/clean
dump run/ --tokenizer model/tokenizer.json --format html -o report.html | 0 | | run=golden/demo/clean model/tokenizer.json=internal/assets/tiny/tokenizer.json
dump run/ --redact --format html -o report.html | 0 | | run=golden/demo/clean
dump run/ --profile trl-grpo@1.16 --shard 0/2 -o part-0.json | 0 | | run=golden/demo/clean
dump run/ --profile trl-grpo@1.16 --shard 1/2 -o part-1.json | 0 | | run=golden/demo/clean
merge part-0.json part-1.json | 0 | agree with TRL 1.16.0 | 
shard-plan --shards 8 --engine slurm -o shards.sh -- dump run/ --profile trl-grpo@1.16 | 0 | | run=golden/demo/clean
shard-plan --shards 8 --engine kubernetes --image registry/plumbline:1 --claim runs -o job.yaml -- dump run/ | 0 | | run=golden/demo/clean
projection --basis outputs/shielded_toy/basis.safetensors --adapter outputs/shielded_toy/final --init outputs/shielded_toy/lora_init | 0 |
vram --model gpt-j-6b --int8 --lora-r 16 --targets q_proj,v_proj --batch 4 --seq 424 --limit 18GB | 1 | 19.47 GB
vram --model gpt-j-6b --int8 --lora-r 16 --targets q_proj,v_proj --batch 4 --seq 424 --limit 18GB --checkpointing -v | 0 | 
vram --model out/base --batch 2 --seq 512 --limit 24GiB --measured smi.csv | 0 | | out/base=internal/assets/tiny smi.csv=SMI
vram --model llama-3.2-1b --autocast bfloat16 --batch 4 --seq 1024 --limit 80GiB | 0 | 
vram --model llama-3.2-1b --autocast bfloat16 --lora-r 16 --targets q_proj,v_proj --batch 4 --seq 1024 --limit 24GiB --checkpointing -v | 0 | 
vram --model llama-3.2-1b --critic same --reward llama-3.1-8b --dtype bfloat16 --batch 2 --seq 512 --limit 80GiB | 0 | 
vram --model llama-3.1-8b --lora-r 16 --targets q_proj,v_proj --critic same --critic-lora-r 16 --batch 2 --seq 512 --limit 80GiB | 0 | 
`

// elsewhere are shown commands that this test does not run, with where they are tried.
var elsewhere = map[string]string{
	"projection --basis outputs/shielded_toy/basis.safetensors --adapter outputs/shielded_toy/final --init outputs/shielded_toy/lora_init": "TestShieldedIsProjected",
	"ops":                          "TestOps, and make slow",
	"ops --run Gemm --cases 10000": "make slow: minutes",
	"ops --faults":                 "TestOps",
	"ops --require avx512vnni":     "TestOpsRequire: its exit code is that of the machine",
}

// Every command of verify that the README and the pages show is run as it stands, by a shell, in a folder that has the files that it names: it
// ends in the code that the page says and prints what it is shown for.
func TestDocumentedCommandsRun(t *testing.T) {
	bin := t.TempDir()
	require.NoError(t, os.Symlink(binaryPath, filepath.Join(bin, "verify")))
	type shown struct{ exit, word, files string }
	table := map[string]shown{}
	for line := range strings.Lines(shownCommands) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		cells := append(strings.Split(line, "|"), "")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		table[cells[0]] = shown{cells[1], cells[2], cells[3]}
	}
	found, err := documented.Commands("../..", "verify")
	require.NoError(t, err)
	said := regexp.MustCompile(`# exit (\d+)`)
	seen := map[string]bool{}
	parts := t.TempDir() // merge.md judges what the two shards before it wrote
	for _, c := range found {
		line := strings.TrimPrefix(strings.TrimSpace(c.Line), "go run ./cmd/")
		if i := strings.Index(line, "  #"); i >= 0 {
			line = strings.TrimSpace(line[:i])
		}
		command := strings.TrimPrefix(line, "verify ")
		if filepath.Base(c.Page) == "documents.md" || seen[command] {
			continue // TestDocuments runs those
		}
		seen[command] = true
		want, is := table[command]
		if !is {
			t.Errorf("%s shows a command that no row of this test runs: %s", c.Page, line)
			continue
		}
		if elsewhere[command] != "" || len(seen)%cases.Every != 0 && !strings.HasSuffix(c.Page, "shard.md") {
			continue
		}
		if m := said.FindStringSubmatch(c.Line); m != nil {
			require.Equal(t, m[1], want.exit, "%s: %s", c.Page, line)
		}
		t.Run(command, func(t *testing.T) {
			dir := t.TempDir()
			switch {
			case strings.HasSuffix(c.Page, "diff.md"):
				dir = diffWorkspace(t)
			case strings.HasSuffix(c.Page, "shard.md"):
				dir = parts
			}
			for _, f := range strings.Fields(want.files) {
				to, from, _ := strings.Cut(f, "=")
				to = filepath.Join(dir, to)
				require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
				if from == "SMI" {
					require.NoError(t, os.WriteFile(to, []byte("index, memory.used [MiB]\n0, 900 MiB\n0, 1800 MiB\n"), 0o644))
					continue
				}
				from = filepath.Join("../..", from)
				info, err := os.Stat(from)
				require.NoError(t, err)
				if _, err := os.Stat(to); err == nil {
					continue
				}
				if info.IsDir() {
					require.NoError(t, os.CopyFS(to, os.DirFS(from)))
				} else {
					text, err := os.ReadFile(from)
					require.NoError(t, err)
					require.NoError(t, os.WriteFile(to, text, 0o644))
				}
			}
			cmd := exec.Command("bash", "-c", line)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "TERM=dumb")
			out, err := cmd.CombinedOutput()
			require.NotNil(t, cmd.ProcessState, err)
			require.Equal(t, want.exit, strconv.Itoa(cmd.ProcessState.ExitCode()), "%s: %s\n%s", c.Page, line, out)
			require.Contains(t, strings.Join(strings.Fields(string(out)), " "), want.word)
			for i, word := range c.Args {
				if word == "-o" || word == "--plot" || word == "--orthonormalize" {
					require.FileExists(t, filepath.Join(dir, c.Args[i+1]))
				}
			}
			if _, file, redirected := strings.Cut(line, " > "); redirected {
				require.FileExists(t, filepath.Join(dir, file))
			}
		})
	}
	for command := range table {
		require.True(t, seen[command] || elsewhere[command] != "", "no page shows: verify %s", command)
	}
	for command := range elsewhere {
		_, is := table[command]
		require.True(t, is, command)
	}
}

// The finding that the README shows is what the program prints. How many bugs the registry has is not compared.
func TestFindingOfREADME(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, extract("demo/pad_in_denominator", filepath.Join(dir, "dumps", "pad_in_denominator")))
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "\n```\ndumps/pad_in_denominator")
	require.True(t, found)
	shown, _, _ := strings.Cut("dumps/pad_in_denominator"+after, "```")
	out, _, code := verify(t, dir, "dump", "dumps/pad_in_denominator")
	require.Equal(t, 1, code)
	plain := func(s string) string {
		s = regexp.MustCompile(`\d+ of the \d+ bugs`).ReplaceAllString(s, "N of the M bugs")
		return strings.Join(strings.Fields(s), " ")
	}
	require.Equal(t, plain(shown), plain(out))
}
