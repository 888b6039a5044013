package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
)

// program is a program to run, with what it reads and finds in its environment.
type program struct {
	path  string
	input string
	env   []string
}

// run returns what the program wrote to its standard output; an error has the rest.
func (c program) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.path, args...)
	cmd.Stdin = strings.NewReader(c.input)
	cmd.Env = append(os.Environ(), c.env...)
	var output, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &complaints
	// A child that inherited the pipes must not keep us waiting for it.
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return output.String(), fmt.Errorf("%s %s: %w\n%s", filepath.Base(c.path), strings.Join(args, " "), err, complaints.String())
	}
	return output.String(), nil
}

// tool is one of the programs beside the suite: helm, jobqueue, localcluster.
func tool(name string, env ...string) program {
	return program{path: filepath.Join(os.Getenv("JOBQUEUE_BIN"), name), env: env}
}

// mustRun is run for what may not fail.
func (c program) mustRun(ctx context.Context, args ...string) string {
	GinkgoHelper()
	output, err := c.run(ctx, args...)
	Expect(err).NotTo(HaveOccurred(), output)
	return output
}

// postgres stops, starts or restarts the local PostgreSQL.
func postgres(ctx context.Context, args ...string) {
	GinkgoHelper()
	tool("localcluster").mustRun(ctx, append([]string{"postgres"}, args...)...)
}

// note keeps a measured value for the table that ends the run.
func note(name, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	AddReportEntry(name, text, ReportEntryVisibilityNever)
	fmt.Fprintf(GinkgoWriter, "%s: %s\n", name, text)
}

// One table at the end, since specs may run side by side.
var _ = ReportAfterSuite("measured", func(report Report) {
	fmt.Println("\nMeasured:")
	for _, spec := range report.SpecReports {
		for _, entry := range spec.ReportEntries {
			fmt.Printf("  %s: %s\n", entry.Name, entry.StringRepresentation())
		}
	}
	fmt.Println("\nSpecs by time:")
	for _, spec := range report.SpecReports.WithLeafNodeType(types.NodeTypeIt).WithState(types.SpecStatePassed) {
		fmt.Printf("  %5.1f s  %s\n", spec.RunTime.Seconds(), spec.FullText())
	}
})
