"""Every template and script, looked at by the tools of those who made the formats."""

import os
import re
import shutil
import tempfile
import unittest

import yaml

from plan import kit

JOINED = [("boot.sh", "server.sh"), ("boot.sh", "cluster.sh")]


def tool(*names):
    return next((path for path in map(shutil.which, names) if path), None)


class Tools(unittest.TestCase):
    def files(self, pattern):
        found = sorted(kit.templates().glob(pattern))
        self.assertTrue(found, pattern)
        return found

    def test_cfn_lint_has_nothing_to_say(self):
        files = [*self.files("*/cairn.yaml"), *self.files("*/cairn.json")]
        self.assertEqual(kit.run(["cfn-lint", "--include-checks", "I", "--ignore-checks", "I3042", "--", *files]), "")

    def test_yaml_and_json_are_the_same(self):
        for file in self.files("*/cairn.yaml"):
            with open(file) as as_yaml, open(file.with_suffix(".json")) as as_json:
                self.assertEqual(yaml.safe_load(as_yaml), yaml.safe_load(as_json), file)

    def test_data_volumes_are_encrypted_and_stay(self):
        for file in self.files("*/cairn.json"):
            resources = yaml.safe_load(file.read_text())["Resources"]
            volumes = [each for each in resources.values() if each["Type"] == "AWS::EC2::Volume"]
            for volume in volumes:
                self.assertEqual((volume["DeletionPolicy"], volume["UpdateReplacePolicy"]), ("Retain", "Retain"))
                self.assertIs(volume["Properties"]["Encrypted"], True)

    @unittest.skipUnless(tool("cloud-init"), "cloud-init is not here: scripts/setup plan")
    def test_cloud_init_takes_the_user_data(self):
        for file in [*self.files("*/server.cloud-init.yaml"), *self.files("client.cloud-init.yaml")]:
            text = kit.run(["cloud-init", "schema", "--config-file", file])
            self.assertIn("Valid cloud-config", text, file)

    @unittest.skipUnless(tool("shellcheck"), "shellcheck is not here: scripts/setup plan")
    def test_shellcheck_has_nothing_to_say(self):
        folder = kit.harness.REPOSITORY / "crates/tools/plan/templates"
        for names in [*JOINED, ("client.sh",), ("health.sh",)]:
            script = "".join((folder / name).read_text() for name in names)
            with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
                file.write(script)
                file.flush()
                # SC2317: functions that run through a variable or a trap look unreachable to it.
                kit.run(["shellcheck", "--shell", "bash", "--exclude", "SC2317", file.name])

    @unittest.skipUnless(tool("tofu", "terraform"), "neither OpenTofu nor Terraform is here")
    def test_terraform_files_are_as_fmt_makes_them(self):
        for file in self.files("*/cairn.tf"):
            kit.run([tool("tofu", "terraform"), "fmt", "-check", "-diff", file])

    @unittest.skipUnless(os.environ.get("CAIRN_PLAN_VALIDATE"), "CAIRN_PLAN_VALIDATE is not set: NOT TESTED: tofu validate")
    def test_terraform_files_are_valid(self):
        for file in self.files("*/cairn.tf"):
            with tempfile.TemporaryDirectory() as folder:
                shutil.copy(file, folder)
                program = tool("tofu", "terraform")
                kit.run([program, f"-chdir={folder}", "init", "-backend=false", "-input=false"])
                kit.run([program, f"-chdir={folder}", "validate"])

    def test_user_data_of_terraform_is_that_of_cloudformation(self):
        for file in self.files("*/cairn.tf"):
            (heredoc,) = re.findall(r"user_data\s+= <<-EOT\n(.*?)\n  EOT\n", file.read_text(), re.DOTALL)
            lines = [line.removeprefix("    ") for line in heredoc.replace("$${", "${").replace("%%{", "%{").split("\n")]
            config = yaml.safe_load("\n".join(lines))
            folder = kit.harness.REPOSITORY / "crates/tools/plan/templates"
            names = JOINED[1] if file.parent.name.startswith("cluster") else JOINED[0]
            script = "".join((folder / name).read_text() for name in names)
            self.assertEqual(config["write_files"][1]["content"], script, file)
