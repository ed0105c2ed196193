package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// shardPlan is what job files are made of.
type shardPlan struct {
	shards, parallel        int
	name, image, claim, dir string
	parts                   string   // folder of the partials, in dir
	args                    []string // of verify, without flags of shards
}

// Exit codes of a shard that another try would not change (see the table in docs/shard.md). 3 is the environment and 130 an
// interruption: these are tried again. 0 is success whatever was found.
var finalCodes = []int{check.ExitFail, check.ExitUsage, check.ExitMalformed, check.ExitNothing, check.ExitUndetermined}

// retries of a shard that failed for its environment.
const retries = 3

var jobName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,50}[a-z0-9])?$`)

func newShardPlan() *cobra.Command {
	var p shardPlan
	var engine, file string
	cmd := &cobra.Command{
		Use:   "shard-plan --shards N --engine kubernetes|slurm -- COMMAND ARGUMENT...",
		Short: "writes the job files of a run that is judged in shards",
		Long: `verify shard-plan writes a Kubernetes Indexed Job or a Slurm batch script that runs verify dump, checkpoint, log or ops with --shard for
every part, and verify merge after them. What follows -- is the command of one process.

A shard that exits with 3 (its environment) is tried again, up to 3 times; the other codes end it for good.`,
		Example: `  verify shard-plan --shards 8 --engine slurm -o shards.sh -- dump run/ --profile trl-grpo@1.16
  verify shard-plan --shards 8 --engine kubernetes --image registry/plumbline:1 --claim runs -- dump run/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			p.args = args
			if err := p.validate(engine); err != nil {
				return err
			}
			var text []byte
			var err error
			if engine == "slurm" {
				text = p.slurm()
			} else if text, err = p.kubernetes(); err != nil {
				return err
			}
			if file == "" || file == "-" {
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			return format.WriteFile(file, func(w io.Writer) error { _, err := w.Write(text); return err })
		},
	}
	f := cmd.Flags()
	f.IntVar(&p.shards, "shards", 0, "number of parts")
	f.IntVar(&p.parallel, "parallel", 0, "shards that run at once (default: all)")
	f.StringVar(&engine, "engine", "", "kubernetes or slurm")
	f.StringVar(&p.name, "name", "plumbline", "name of the jobs")
	f.StringVar(&p.dir, "dir", "", "folder in which the commands run (default: /data of the container, the folder of sbatch)")
	f.StringVar(&p.parts, "parts", "parts", "folder of the partials, made if it is not there")
	f.StringVar(&p.image, "image", "", "kubernetes: image that has verify")
	f.StringVar(&p.claim, "claim", "", "kubernetes: persistent volume claim that has the run")
	f.StringVarP(&file, "output", "o", "", "write to this file, whole or not at all, in place of stdout (-)")
	return cmd
}

// validate refuses what no engine would run, and a command that one process would refuse, too.
func (p *shardPlan) validate(engine string) error {
	switch {
	case !slices.Contains([]string{"kubernetes", "slurm"}, engine):
		return usageError{fmt.Sprintf("--engine %q: want kubernetes or slurm%s", engine, near(engine, []string{"kubernetes", "slurm"}))}
	case p.shards < 1 || p.shards > 100_000:
		return usageError{fmt.Sprintf("--shards %d: want 1 to 100000", p.shards)}
	case p.parallel < 0:
		return usageError{fmt.Sprintf("--parallel %d: want 1 or more", p.parallel)}
	case !jobName.MatchString(p.name):
		return usageError{fmt.Sprintf("--name %q: want small letters, digits and hyphens, a letter first, at most 52", p.name)}
	case p.parts == "" || strings.ContainsAny(p.parts+p.dir, "\n\r\x00"):
		return usageError{"--parts and --dir are names of folders, on one line"}
	case engine == "kubernetes" && (p.image == "" || p.claim == ""):
		return usageError{"a Kubernetes job needs --image and --claim"}
	case engine == "slurm" && p.image+p.claim != "":
		return usageError{"--image and --claim are for --engine kubernetes"}
	case len(p.args) == 0 || !slices.Contains(shardables, p.args[0]):
		return usageError{"what follows -- is one of " + strings.Join(shardables, ", ") + " with its arguments: -- dump run/"}
	}
	for _, a := range p.args {
		if strings.ContainsAny(a, "\n\r\x00") {
			return usageError{fmt.Sprintf("the argument %q is not on one line", a)}
		}
	}
	one := shardable(newRoot(), p.args[0])
	if err := one.ParseFlags(p.args[1:]); err != nil {
		return usageError{err.Error()}
	}
	switch given := one.Flags().Args(); {
	case p.args[0] == "ops" && len(given) > 0:
		return usageError{fmt.Sprintf("verify ops takes no argument, got %q", given[0])}
	case p.args[0] == "checkpoint" && len(given) != 1:
		return usageError{"checkpoint takes one folder (verify checkpoint --help)"}
	case p.args[0] != "ops" && len(given) == 0:
		return usageError{p.args[0] + " takes files, folders or globs (verify " + p.args[0] + " --help)"}
	case slices.Contains(given, "-"):
		return usageError{"a job has no stdin: name files"}
	}
	var err error
	one.Flags().Visit(func(f *pflag.Flag) {
		switch {
		case slices.Contains([]string{"shard", "output", "format", "baseline"}, f.Name):
			err = usageError{fmt.Sprintf("--%s is set by the plan, or goes with verify merge", f.Name)}
		case slices.Contains([]string{"follow", "plan", "faults", "record", "replay"}, f.Name):
			err = usageError{fmt.Sprintf("--%s does not go with shards", f.Name)}
		}
	})
	if p.parallel == 0 || p.parallel > p.shards {
		p.parallel = p.shards
	}
	return err
}

// command is that of a shard under an engine that numbers it.
func (p *shardPlan) command() []string {
	return append(append([]string{"verify"}, p.args...), "--shard", fmt.Sprintf("auto/%d", p.shards), "-o", p.parts+"/")
}

// merge is the command that makes the report of the partials.
func (p *shardPlan) merge() []string {
	list := []string{"verify", "merge", "--format", "json", "-o", p.parts + "/report.json"}
	for i := range p.shards {
		list = append(list, fmt.Sprintf("%s/shard-%d-of-%d.json", p.parts, i, p.shards))
	}
	return list
}

// shell quotes a word for a POSIX shell.
func shell(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = w
		if w == "" || strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%") != "" {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// slurm returns a batch script. As a task of an array it is a shard, alone it is the merge.
func (p *shardPlan) slurm() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `#!/bin/bash
# %d shards, then their report:
#   id=$(sbatch --parsable --array=0-%d%%%d THIS)
#   sbatch --dependency=afterok:$id THIS
#SBATCH --job-name=%s
#SBATCH --cpus-per-task=1
`, p.shards, p.shards-1, p.parallel, p.name)
	if p.dir != "" {
		fmt.Fprintf(&b, "cd %s || exit 3\n", shell([]string{p.dir}))
	}
	fmt.Fprintf(&b, `if [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
  exec %s
fi
for try in $(seq 0 %d); do
  code=0
  %s || code=$?
  case $code in
  3) echo "shard $SLURM_ARRAY_TASK_ID: the environment failed, try $try" >&2 ;;
  *) exit $code ;;
  esac
done
exit 3
`, shell(p.merge()), retries, shell(p.command()))
	return b.Bytes()
}

// The part of the Kubernetes API batch/v1 that a plan needs.
type (
	k8sJob struct {
		APIVersion string  `json:"apiVersion"`
		Kind       string  `json:"kind"`
		Metadata   k8sMeta `json:"metadata"`
		Spec       k8sSpec `json:"spec"`
	}
	k8sMeta struct {
		Name string `json:"name"`
	}
	k8sSpec struct {
		CompletionMode       string      `json:"completionMode,omitempty"`
		Completions          int         `json:"completions,omitempty"`
		Parallelism          int         `json:"parallelism,omitempty"`
		BackoffLimitPerIndex *int        `json:"backoffLimitPerIndex,omitempty"`
		BackoffLimit         *int        `json:"backoffLimit,omitempty"`
		Suspend              bool        `json:"suspend,omitempty"`
		PodFailurePolicy     k8sPolicy   `json:"podFailurePolicy"`
		Template             k8sTemplate `json:"template"`
	}
	k8sPolicy struct {
		Rules []k8sRule `json:"rules"`
	}
	k8sRule struct {
		Action          string         `json:"action"`
		OnExitCodes     *k8sCodes      `json:"onExitCodes,omitempty"`
		OnPodConditions []k8sCondition `json:"onPodConditions,omitempty"`
	}
	k8sCodes struct {
		ContainerName string `json:"containerName"`
		Operator      string `json:"operator"`
		Values        []int  `json:"values"`
	}
	k8sCondition struct {
		Type   string `json:"type"`
		Status string `json:"status"`
	}
	k8sTemplate struct {
		Spec k8sPod `json:"spec"`
	}
	k8sPod struct {
		RestartPolicy string         `json:"restartPolicy"`
		Containers    []k8sContainer `json:"containers"`
		Volumes       []k8sVolume    `json:"volumes"`
	}
	k8sContainer struct {
		Name         string     `json:"name"`
		Image        string     `json:"image"`
		Command      []string   `json:"command"`
		WorkingDir   string     `json:"workingDir"`
		VolumeMounts []k8sMount `json:"volumeMounts"`
	}
	k8sMount struct {
		Name      string `json:"name"`
		MountPath string `json:"mountPath"`
	}
	k8sVolume struct {
		Name  string   `json:"name"`
		Claim k8sClaim `json:"persistentVolumeClaim"`
	}
	k8sClaim struct {
		ClaimName string `json:"claimName"`
	}
)

// kubernetes returns an Indexed Job, and a suspended one for the merge. A disruption of a pod is no failure of its shard.
func (p *shardPlan) kubernetes() ([]byte, error) {
	dir := cmp.Or(p.dir, "/data")
	pod := func(command []string) k8sTemplate {
		return k8sTemplate{k8sPod{
			RestartPolicy: "Never",
			Containers:    []k8sContainer{{"verify", p.image, command, dir, []k8sMount{{"run", dir}}}},
			Volumes:       []k8sVolume{{"run", k8sClaim{p.claim}}},
		}}
	}
	policy := func(action string) k8sPolicy {
		return k8sPolicy{[]k8sRule{
			{Action: action, OnExitCodes: &k8sCodes{"verify", "In", finalCodes}},
			{Action: "Ignore", OnPodConditions: []k8sCondition{{"DisruptionTarget", "True"}}},
		}}
	}
	limit := retries
	shards := k8sJob{"batch/v1", "Job", k8sMeta{p.name}, k8sSpec{CompletionMode: "Indexed", Completions: p.shards, Parallelism: p.parallel,
		BackoffLimitPerIndex: &limit, PodFailurePolicy: policy("FailIndex"), Template: pod(p.command())}}
	merge := k8sJob{"batch/v1", "Job", k8sMeta{p.name + "-merge"}, k8sSpec{BackoffLimit: &limit, Suspend: true, PodFailurePolicy: policy("FailJob"), Template: pod(p.merge())}}
	var b bytes.Buffer
	fmt.Fprintf(&b, `# %d shards, then their report (Kubernetes 1.33 or later: backoffLimitPerIndex):
#   kubectl apply -f THIS
#   kubectl wait --for=condition=complete job/%s --timeout=-1s
#   kubectl patch job/%s-merge -p '{"spec":{"suspend":false}}'
`, p.shards, p.name, p.name)
	e := json.NewEncoder(&b) // which YAML has as a part of itself
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	for _, j := range []k8sJob{shards, merge} {
		b.WriteString("---\n")
		if err := e.Encode(j); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}
