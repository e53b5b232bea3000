"""What a server's machine does about its own health, and how it gets its package: the scripts, run as they are.

Real: the scripts, the AWS CLI, a health endpoint. Stand-ins: AWS (moto), the instance's metadata, `cairn status`, systemctl.
"""

import hashlib
import http.server
import json
import os
import subprocess
import threading

from lib import harness
from plan import kit

TEMPLATES = harness.REPOSITORY / "crates/tools/plan/templates"
SECONDS_MAX = 300
FAILURES_MAX = 15
SETTINGS = """CAIRN_NAME='files'
CAIRN_REGION='us-east-1'
CAIRN_STACK=''
CAIRN_SIGNAL='ServerGroup'
CAIRN_GROUP='files-storage'
CAIRN_HOOK='boot'
CAIRN_METRICS='Cairn'
CAIRN_PACKAGE_URL='s3://packages/cairn.deb'
CAIRN_PACKAGE_SHA256='{sha256}'
"""
STATUS = {"health": "degraded", "pool": {"free_bytes": 25, "total_bytes": 100}}
# The boot script without its last part: what it does is replaced where the test must not do it.
INSTALL = """
. {boot}
trap finish EXIT
need_packages() {{ cp "$1" {installed}; }}
cairn() {{ echo cairn 0.1.0; }}
{body}
"""


class Answers(http.server.BaseHTTPRequestHandler):
    """The server's health and the instance's metadata."""

    instance = ""
    healthy = True

    def do_PUT(self):
        self.answer(200, "a-token")

    def do_GET(self):
        if self.path == "/healthz":
            self.answer(*((200, "ok\n") if self.healthy else (500, "no")))
        else:
            self.answer(200, self.instance)

    def answer(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


class Health(kit.Test):
    def setUp(self):
        self.folder = self.enterContext(harness.scratch("health-"))
        self.aws = self.enterContext(kit.aws())
        answers = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=answers.serve_forever, daemon=True).start()
        self.addCleanup(answers.server_close)
        self.addCleanup(answers.shutdown)
        self.url = f"http://127.0.0.1:{answers.server_port}"
        Answers.healthy = True
        Answers.instance = self.group()
        self.state = self.folder / "state"
        self.state.mkdir()
        (self.folder / "deploy.env").write_text(SETTINGS.format(sha256="0" * 64))
        self.shim("cairn", f"echo '{json.dumps(STATUS)}'")
        self.unit("active")

    def shim(self, name, text):
        path = self.folder / "shims" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def unit(self, word):
        self.shim("systemctl", f"echo {word}")

    def group(self):
        """An auto scaling group of one; returns the id of its instance."""
        subnet = self.aws.network()["Subnet"]
        self.aws("ec2", "create-launch-template", "--launch-template-name", "server", "--launch-template-data",
                 json.dumps({"ImageId": kit.IMAGE, "InstanceType": "m6i.large"}))
        self.aws("autoscaling", "create-auto-scaling-group", "--auto-scaling-group-name", "files-storage",
                 "--launch-template", "LaunchTemplateName=server", "--min-size", "1", "--max-size", "1",
                 "--vpc-zone-identifier", subnet)
        return self.instance()["InstanceId"]

    def instance(self):
        found = self.aws("autoscaling", "describe-auto-scaling-groups", "--auto-scaling-group-names", "files-storage")
        return found["AutoScalingGroups"][0]["Instances"][0]

    def script(self, argv, **more):
        environment = {**self.aws.environment, "PATH": f"{self.folder / 'shims'}:{os.environ['PATH']}",
                       "CAIRN_DEPLOY_ENV": str(self.folder / "deploy.env"), "CAIRN_METADATA": self.url,
                       "CAIRN_ADMIN": self.url, "RUNTIME_DIRECTORY": str(self.state), "CAIRN_RETRY_SECONDS": "0", **more}
        done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=SECONDS_MAX)
        return done.returncode, done.stdout

    def health(self):
        status, text = self.script(["bash", str(TEMPLATES / "health.sh")])
        self.assertEqual(status, 0, text)
        return text

    def metrics(self):
        """The last value of each, by name."""
        values = {}
        for metric in self.aws("cloudwatch", "list-metrics", "--namespace", "Cairn")["Metrics"]:
            self.assertEqual(metric["Dimensions"], [{"Name": "Server", "Value": "files"}])
            values[metric["MetricName"]] = True
        return set(values)

    def test_a_server_that_serves_tells_how_it_is(self):
        (self.state / "failures").write_text("7")
        self.health()
        self.assertEqual(self.metrics(), {"Serving", "Degraded", "UsedPercent"})
        self.assertFalse((self.state / "failures").exists())
        self.assertEqual(self.instance()["HealthStatus"], "Healthy")

    def test_an_instance_is_replaced_when_its_server_has_not_answered_for_long(self):
        Answers.healthy = False
        first = self.instance()["InstanceId"]
        self.health()
        self.assertEqual((self.state / "failures").read_text(), "1\n")
        self.assertEqual(self.instance()["HealthStatus"], "Healthy")
        (self.state / "failures").write_text(f"{FAILURES_MAX - 2}\n")
        self.health()
        self.assertEqual(self.instance()["HealthStatus"], "Healthy")
        text = self.health()
        self.assertIn("reported as unhealthy", text)
        # The stand-in replaces it at once, or only marks it.
        now = self.instance()
        self.assertTrue(now["InstanceId"] != first or now["HealthStatus"] == "Unhealthy", now)

    def test_a_server_that_was_stopped_is_left_alone(self):
        Answers.healthy = False
        (self.state / "failures").write_text(f"{FAILURES_MAX - 1}\n")
        self.unit("inactive")
        self.assertIn("not replaced", self.health())
        self.assertEqual(self.instance()["HealthStatus"], "Healthy")
        self.assertFalse((self.state / "failures").exists())

    def package(self, content, sha256):
        self.aws("s3api", "create-bucket", "--bucket", "packages")
        file = self.folder / "cairn.deb"
        file.write_bytes(content)
        kit.run(["aws", "s3", "cp", "--only-show-errors", file, "s3://packages/cairn.deb"], env=self.aws.environment)
        (self.folder / "deploy.env").write_text(SETTINGS.format(sha256=sha256))

    def install(self, body="install_cairn"):
        installed = self.folder / "installed"
        text = INSTALL.format(boot=TEMPLATES / "boot.sh", installed=installed, body=body)
        status, said = self.script(["bash", "-c", text])
        return status, said, installed

    def test_a_package_is_installed_if_it_is_what_it_has_to_be(self):
        content = b"a package"
        self.package(content, hashlib.sha256(content).hexdigest())
        status, said, installed = self.install()
        self.assertEqual(status, 0, said)
        self.assertEqual(installed.read_bytes(), content)
        self.assertIn("ends with SUCCESS", said)

    def test_another_package_is_tried_again_and_refused(self):
        self.package(b"a package", "0" * 64)
        status, said, installed = self.install()
        self.assertEqual(status, 1, said)
        self.assertEqual(said.count("is not what its SHA-256 says"), 5)
        self.assertIn("ends with FAILURE", said)
        self.assertFalse(installed.exists())

    def test_a_package_that_is_there_late_is_taken(self):
        content = b"a package"
        self.package(content, hashlib.sha256(content).hexdigest())
        tries = self.folder / "tries"
        # The first two downloads fail, and the third is cut short.
        body = f"""
eval "real_$(declare -f download)"
download() {{
    echo >>{tries}
    case $(wc -l <{tries}) in 1 | 2) return 1 ;; 3) echo a >"$1" ;; *) real_download "$1" ;; esac
}}
install_cairn
"""
        status, said, installed = self.install(body)
        self.assertEqual(status, 0, said)
        self.assertEqual(installed.read_bytes(), content)
        self.assertEqual((said.count("cannot be fetched"), said.count("is not what its SHA-256 says")), (2, 1))
