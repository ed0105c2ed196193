// Package export holds the Python files that verify export prints and that the wheel carries: hooks for trainers, and tests.
package export

import "embed"

// Files are plumbline_trl.py, plumbline_trl_rloo.py, plumbline_trl_dpo.py, plumbline_verl.py, plumbline_openrlhf.py, plumbline_torch.py and test_ppo_golden.py.
//
//go:embed *.py
var Files embed.FS
