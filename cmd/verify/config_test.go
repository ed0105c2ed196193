package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
	"plumbline/verify/report"
)

// What examples of the frameworks declare, in every form that a configuration has; see testdata/configs/expect.txt.
func TestConfigExamples(t *testing.T) {
	const dir = "testdata/configs"
	text, err := os.ReadFile(filepath.Join(dir, "expect.txt"))
	require.NoError(t, err)
	count := map[string]int{}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		file, rest, ok := strings.Cut(line, ": ")
		require.True(t, ok, line)
		options, unknown, _ := strings.Cut(rest, " | ")
		framework := filepath.Dir(file)
		count[framework]++
		t.Run(file, func(t *testing.T) {
			var r report.Report
			d, err := readConfigs([]string{filepath.Join(dir, file)}, "", &r)
			require.NoError(t, err)
			require.Contains(t, d.Table, framework)
			require.Contains(t, r.Lines[0], filepath.Base(file))
			for _, o := range strings.Fields(options) {
				name, value, _ := strings.Cut(o, "=")
				require.Equal(t, value, d.Set.Value(name).String(), name)
				require.Contains(t, d.Set.Origin(name), filepath.Base(file))
			}
			var names []string
			for _, u := range d.Unknown {
				name, nearest, _ := strings.Cut(u, " (nearest: ")
				require.NotEmpty(t, nearest, u)
				names = append(names, name)
			}
			slices.Sort(names)
			require.Equal(t, strings.Fields(unknown), append([]string{}, names...))
		})
	}
	require.Equal(t, map[string]int{"trl": 11, "verl": 10, "openrlhf": 10}, count)
	files, err := filepath.Glob(dir + "/*/*")
	require.NoError(t, err)
	require.Len(t, files, 31, "a file without a line in expect.txt")
}

func writeConfig(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o666))
	return file
}

func TestConfigForms(t *testing.T) {
	for _, c := range []struct {
		name, file, profile, text string
		table                     string
		want                      string // option=value
		unknown                   string
		missing                   string // of the section of values that are not there
	}{
		{"neutral YAML", "a.yaml", "", "clip:\n  low: 0.1\nadv.ddof: 0\n", "", "adv.ddof=0 clip.low=0.1", "", ""},
		{"neutral JSON", "a.json", "", `{"options": {"clip.low": 0.1}}`, "", "clip.low=0.1", "", ""},
		{"lines", "a.txt", "", "clip.low = 0.1 # comment\n", "", "clip.low=0.1", "", ""},
		{"lines of a framework", "a.txt", "", "framework = verl\nclip_ratio_low = 0.3\n", "verl", "clip.low=0.3", "", ""},
		{"exponents without a dot", "a.yaml", "", "loss_type: grpo\nlearning_rate: 1e-5\n", "trl-grpo", "optim.lr=1e-5", "", ""},
		{"the profile tells the trainer", "a.yaml", "trl-rloo@1.16", "beta: 0.05\nlearning_rate: 1.0e-6\nepsilon: 0.1\n", "trl-rloo", "clip.low=0.1 kl.beta=0.05", "", ""},
		{"the script tells the trainer", "a.sh", "", "accelerate launch x.yaml trl/scripts/rloo.py --beta 0.05 --epsilon 0.1", "trl-rloo", "kl.beta=0.05", "", ""},
		{"trl grpo", "a.sh", "", "trl grpo --beta 0.05 --loss_type bnpo", "trl-grpo", "kl.beta=0.05 agg.denominator=micro", "", ""},
		{"misspelt TRL", "a.yaml", "", "loss_type: grpo\nepsilon: 0.2\nepsilon_hihg: 0.3\n", "trl-grpo", "clip.low=0.2", "epsilon_hihg (nearest: epsilon_high)", ""},
		{"misspelt verl", "a.yaml", "", "algorithm:\n  gamma: 0.9\nactor_rollout_ref:\n  actor:\n    clip_ratio_hihg: 0.3\n", "verl", "gae.gamma=0.9", "actor_rollout_ref.actor.clip_ratio_hihg (nearest: actor_rollout_ref.actor.clip_ratio_high)", ""},
		{"misspelt OpenRLHF", "a.args", "", "--actor.eps_clip 0.1\n--algo.kl.init_coeff 0.3\n", "openrlhf", "clip.low=0.1 clip.high=0.1", "algo.kl.init_coeff (nearest: algo.kl.init_coef)", ""},
		{"a variable of the shell", "a.sh", "", "python3 -m verl.trainer.main_ppo algorithm.gamma=$GAMMA algorithm.lam=0.9 data.train_files=$HOME/x\n", "verl", "gae.lambda=0.9", "", "algorithm.gamma ($GAMMA)"},
		{"an interpolation", "a.yaml", "", "algorithm:\n  gamma: ${x.y}\n  lam: ${data.lam}\ndata:\n  lam: 0.5\n", "verl", "gae.lambda=0.5", "data.lam (nearest", "algorithm.gamma (${x.y})"},
		{"flags that are left out", "a.sh", "", "python3 -m openrlhf.cli.train_ppo_ray --algo.advantage.estimator rloo --algo.kl.init_coef 0.1", "openrlhf", "kl.place=sequence_reward_after adv.kind=group", "", ""},
		{"flags that are left out, under a profile", "a.sh", "openrlhf-ppo@0.11", "python3 -m openrlhf.cli.train_ppo_ray --algo.kl.init_coef 0.1", "openrlhf", "kl.place=token_reward adv.kind=gae", "", ""},
		{"a flag that is there by its former name", "a.sh", "", "python3 -m openrlhf.cli.train_ppo_ray --use_kl_loss --advantage_estimator rloo", "openrlhf", "kl.place=loss kl.grad=naive", "", ""},
		{"a command that may have any flag", "a.sh", "", "python3 -m openrlhf.cli.train_ppo_ray --actor.eps_clip 0.1 --algo.kl.init_coef 0.1 $MORE", "openrlhf", "kl.place=? adv.kind=?", "", "algo.kl.init_coef ($MORE)"},
		{"no command", "a.args", "", "--algo.kl.init_coef 0.1\n--actor.eps_clip 0.1\n", "openrlhf", "kl.place=? clip.low=0.1", "", ""},
		{"other files", "a.yaml", "", "defaults:\n  - ppo_trainer\nalgorithm:\n  gamma: 0.5\n", "verl", "gae.gamma=0.5", "", "defaults"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r report.Report
			d, err := readConfigs([]string{writeConfig(t, c.file, c.text)}, c.profile, &r)
			require.NoError(t, err)
			if c.table == "" {
				require.Empty(t, d.Table)
			} else {
				require.Contains(t, d.Table, c.table)
			}
			for _, o := range strings.Fields(c.want) {
				name, value, _ := strings.Cut(o, "=")
				require.Equal(t, value, d.Set.Value(name).String(), name)
			}
			if c.unknown == "" {
				require.Empty(t, d.Unknown)
			} else {
				require.Contains(t, strings.Join(d.Unknown, "\n"), c.unknown)
			}
			missing := ""
			if i := slices.IndexFunc(r.Lists, func(s report.Section) bool { return strings.Contains(s.Title, "does not hold") }); i >= 0 {
				missing = strings.Join(r.Lists[i].Items, "\n")
			}
			if c.missing == "" {
				require.Empty(t, missing)
			} else {
				require.Contains(t, missing, c.missing)
				require.NotContains(t, missing, "train_files", "what decides nothing is not missed")
			}
		})
	}
}

// The last file is strongest, and an override takes a name away.
func TestConfigSeveralFiles(t *testing.T) {
	tree := writeConfig(t, "config.yaml", "algorithm:\n  gamma: 0.9\n  lam: 0.8\nactor_rollout_ref:\n  actor:\n    clip_ratio_low: 0.1\n")
	over := writeConfig(t, "overrides.yaml", "- algorithm.gamma=0.5\n- ~actor_rollout_ref.actor.clip_ratio_low\n- +actor_rollout_ref.actor.clip_ratio_high=0.3\n")
	value := func(d *convention.Declared, name string) string { return d.Set.Value(name).String() }
	d, err := readConfigs([]string{tree, over}, "", &report.Report{})
	require.NoError(t, err)
	require.Equal(t, "0.5 0.8 0.3", strings.Join([]string{value(d, "gae.gamma"), value(d, "gae.lambda"), value(d, "clip.high")}, " "))
	require.Equal(t, convention.Unknown, d.Set.Value("clip.low").Kind())
	d, err = readConfigs([]string{over, tree}, "", &report.Report{})
	require.NoError(t, err)
	require.Equal(t, "0.9", value(d, "gae.gamma"))
}

func TestConfigErrors(t *testing.T) {
	for _, c := range []struct{ name, file, text, want string }{
		{"misspelt neutral", "a.yaml", "clip.lo: 0.1\nloss_type: grpo\n", "clip.lo"},
		{"value", "a.yaml", "loss_type: [1]\nnum_generations: 8\nmax_completion_length: 8\nscale_rewards: none\n", "loss_type=1 is no legal value"},
		{"NaN", "a.yaml", "loss_type: grpo\nbeta: .nan\n", "beta=NaN is no legal value"},
		{"octal", "a.yaml", "loss_type: grpo\nbeta: 010\n", "beta=010 is no legal value"},
		{"no framework", "a.yaml", "hello: 1\nworld: 2\n", "do not tell whether TRL, verl or OpenRLHF"},
		{"nothing", "a.yaml", "{}\n", "no option in it"},
		{"list", "a.yaml", "- 1\n", "a list, but not of arguments"},
		{"prose", "a.sh", "echo hello\n", "no option in it"},
		{"anchor", "a.yaml", "a: &x 1\nb: *x\n", "anchors"},
		{"framework", "a.yaml", "framework: 3\nbeta: 1\n", "framework names no framework"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := readConfigs([]string{writeConfig(t, c.file, c.text)}, "", &report.Report{})
			require.ErrorAs(t, err, new(usageError))
			require.ErrorContains(t, err, c.want)
			require.Contains(t, err.Error(), c.file)
		})
	}
	_, err := readConfigs([]string{"nowhere.yaml"}, "", &report.Report{})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = readConfigs([]string{t.TempDir()}, "", &report.Report{})
	require.ErrorContains(t, err, "directory")
}
