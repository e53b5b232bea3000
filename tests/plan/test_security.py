"""What every template promises about access, encryption, replacement and recovery; read from the templates themselves."""

import json
import re

import hcl2

from plan import kit

EVERYONE = ["0.0.0.0/0", "0.0.0.0/1", "10.0.0.0/8", "10.0.0.0/23"]
LOGINS = ["10.0.0.7/32", "10.0.0.0/24"]
NOT_IMAGES = ["", "resolve:ssm:/aws/service/debian/release/12/latest/amd64", "/aws/service/debian/release/12/latest/amd64"]
ALARMS = {"Serving", "Degraded", "UsedPercent"}
HTTPS = 443


class CloudFormation(kit.Test):
    def templates(self):
        files = sorted(kit.templates().glob("*/cairn.json"))
        self.assertTrue(files)
        for file in files:
            yield file.parent.name, json.loads(file.read_text())

    def of_type(self, template, kind):
        return {name: each for name, each in template["Resources"].items() if each["Type"] == kind}

    def test_root_of_the_volume_is_no_wide_network(self):
        for _, template in self.templates():
            parameters = template["Parameters"]
            check_patterns(self, parameters["LoginAddress"]["AllowedPattern"], parameters["ClientNetwork"]["AllowedPattern"])

    def test_only_https_goes_out(self):
        for _, template in self.templates():
            for name, group in self.of_type(template, "AWS::EC2::SecurityGroup").items():
                (rule,) = group["Properties"]["SecurityGroupEgress"]
                if name == "InternalSecurityGroup":
                    self.assertEqual(rule["CidrIp"], "127.0.0.1/32")
                    continue
                self.assertEqual((rule["IpProtocol"], rule["FromPort"], rule["ToPort"]), ("tcp", HTTPS, HTTPS))
                self.assertEqual(rule["CidrIp"], {"Ref": "EgressNetwork"})
            for rule in self.of_type(template, "AWS::EC2::SecurityGroupEgress").values():
                self.assertIn("DestinationSecurityGroupId", rule["Properties"])

    def test_every_volume_has_the_key(self):
        key = {"Fn::If": ["HasNewKey", {"Fn::GetAtt": ["VolumeKey", "Arn"]}, {"Ref": "KmsKey"}]}
        for _, template in self.templates():
            volumes = [each["Properties"] for each in self.of_type(template, "AWS::EC2::Volume").values()]
            for launch in self.of_type(template, "AWS::EC2::LaunchTemplate").values():
                volumes += [each["Ebs"] for each in launch["Properties"]["LaunchTemplateData"]["BlockDeviceMappings"]]
            for volume in volumes:
                self.assertIs(volume["Encrypted"], True)
                self.assertEqual(volume["KmsKeyId"], key)
            made = template["Resources"]["VolumeKey"]
            self.assertEqual((made["DeletionPolicy"], made["UpdateReplacePolicy"]), ("Retain", "Retain"))
            self.assertIs(made["Properties"]["EnableKeyRotation"], True)
            for statement in made["Properties"]["KeyPolicy"]["Statement"]:
                if statement["Principal"] == {"AWS": "*"}:
                    conditions = statement["Condition"]["StringEquals"]
                    self.assertEqual(set(conditions), {"kms:CallerAccount", "kms:ViaService"})
                    self.assertNotIn("kms:*", statement["Action"])

    def test_an_image_is_pinned(self):
        for _, template in self.templates():
            image = template["Parameters"]["Image"]
            # A parameter of SSM would be looked up again by each update, and replace the server when there is a newer image.
            self.assertEqual(image["Type"], "AWS::EC2::Image::Id")
            self.assertNotIn("Default", image)

    def test_a_package_has_a_checksum(self):
        for _, template in self.templates():
            for name in ("PackageUrl", "PackageSha256"):
                parameter = template["Parameters"][name]
                self.assertNotIn("Default", parameter)
                self.assertIsNone(re.fullmatch(parameter["AllowedPattern"], ""))

    def test_a_boot_that_fails_fails_the_stack_and_the_instance(self):
        for name, template in self.templates():
            if name.startswith("cluster"):
                nodes = self.of_type(template, "AWS::EC2::Instance").values()
                self.assertTrue(all(node["CreationPolicy"]["ResourceSignal"]["Count"] == 1 for node in nodes))
                continue
            group = template["Resources"]["ServerGroup"]
            self.assertEqual(group["CreationPolicy"]["ResourceSignal"]["Count"], 1)
            update = group["UpdatePolicy"]["AutoScalingRollingUpdate"]
            self.assertIs(update["WaitOnResourceSignals"], True)
            self.assertIn("ReplaceUnhealthy", update["SuspendProcesses"])
            (hook,) = group["Properties"]["LifecycleHookSpecificationList"]
            self.assertEqual((hook["LifecycleHookName"], hook["DefaultResult"]), ("boot", "ABANDON"))
            self.assertEqual(hook["LifecycleTransition"], "autoscaling:EC2_INSTANCE_LAUNCHING")

    def test_a_server_may_report_itself_and_nobody_else(self):
        for name, template in self.templates():
            if name.startswith("cluster"):
                continue
            group = template["Resources"]["ServerGroup"]["Properties"]["AutoScalingGroupName"]["Fn::Sub"]
            statements = template["Resources"]["ServerRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
            (statement,) = [each for each in statements if "autoscaling:SetInstanceHealth" in each["Action"]]
            self.assertTrue(statement["Resource"]["Fn::Sub"].endswith(f":autoScalingGroupName/{group}"))

    def test_snapshots_are_of_all_volumes_at_once(self):
        for name, template in self.templates():
            policies = list(self.of_type(template, "AWS::DLM::LifecyclePolicy").values())
            self.assertEqual(len(policies), int(name not in ("instance-store", "cluster-4", "cluster-18")))
            for policy in policies:
                details = policy["Properties"]["PolicyDetails"]
                self.assertEqual(details["ResourceTypes"], ["INSTANCE"])
                self.assertIs(details["Parameters"]["ExcludeBootVolume"], True)
                (tag,) = details["TargetTags"]
                data = template["Resources"]["ServerTemplate"]["Properties"]["LaunchTemplateData"]
                (tags,) = [each["Tags"] for each in data["TagSpecifications"] if each["ResourceType"] == "instance"]
                self.assertIn(tag, tags)
                self.assertEqual(details["Schedules"][0]["RetainRule"]["IntervalUnit"], "DAYS")

    def test_alarms_are_of_what_a_server_tells(self):
        script = (kit.harness.REPOSITORY / "crates/tools/plan/templates/health.sh").read_text()
        told = set(re.findall(r"^\s*metric (\w+) ", script, re.MULTILINE))
        self.assertEqual(told, ALARMS)
        for name, template in self.templates():
            alarms = [each["Properties"] for each in self.of_type(template, "AWS::CloudWatch::Alarm").values()]
            wanted = {"StatusCheckFailed"} if name.startswith("cluster") else ALARMS
            self.assertEqual({each["MetricName"] for each in alarms}, wanted)
            for each in alarms:
                self.assertEqual(each["AlarmActions"]["Fn::If"][1], [{"Ref": "AlarmTopic"}])


class Terraform(kit.Test):
    def files(self):
        files = sorted(kit.templates().glob("*/cairn.tf"))
        self.assertTrue(files)
        for file in files:
            text = file.read_text()
            yield file.parent.name, text, Tree(text)

    def test_patterns(self):
        for _, text, _ in self.files():
            check_patterns(self, pattern(text, "login_address"), pattern(text, "client_network"))
            for value in NOT_IMAGES:
                self.assertIsNone(re.search(pattern(text, "image"), value), value)
            for name in ("package_url", "package_sha256"):
                self.assertIsNone(re.search(pattern(text, name), ""))
            for name in ("package_url", "package_sha256", "image"):
                self.assertNotRegex(text, rf'variable "{name}" {{\n[^}}]*default')

    def test_only_https_goes_out(self):
        for _, _, tree in self.files():
            for name, group in tree.of_type("aws_security_group").items():
                (rule,) = group["egress"]
                if name == "internal":
                    self.assertIs(rule["self"], True)
                    self.assertNotIn("cidr_blocks", rule)
                    continue
                self.assertEqual((text_of(rule["protocol"]), rule["from_port"], rule["to_port"]), ("tcp", HTTPS, HTTPS))
                self.assertEqual([text_of(each) for each in rule["cidr_blocks"]], ["${var.egress_network}"])

    def test_every_volume_has_the_key(self):
        for _, _, tree in self.files():
            volumes = list(tree.of_type("aws_ebs_volume").values())
            for launch in tree.of_type("aws_launch_template").values():
                volumes += [each["ebs"][0] for each in launch["block_device_mappings"]]
            for volume in volumes:
                self.assertIs(volume["encrypted"], True)
                self.assertEqual(text_of(volume["kms_key_id"]), "${local.volume_key}")
            (key,) = tree.of_type("aws_kms_key").values()
            self.assertIs(key["enable_key_rotation"], True)
            self.assertIs(key["lifecycle"][0]["prevent_destroy"], True)

    def test_a_boot_that_fails_fails_apply_and_the_instance(self):
        for name, text, tree in self.files():
            (stack,) = tree.of_type("aws_cloudformation_stack").values()
            self.assertIn("AWS::CloudFormation::WaitCondition", text_of(stack["template_body"]))
            count = int(name.partition("-")[2]) if name.startswith("cluster") else 1
            self.assertIn(f"Count = {count},", text)
            self.assertIn("CAIRN_STACK='${var.cluster_name}-boot'", text)
            (signal,) = re.findall(r"CAIRN_SIGNAL='(\w+)'", text)
            if name.startswith("cluster"):
                (node,) = tree.of_type("aws_instance").values()
                signal = text_of({text_of(key): value for key, value in node["tags"].items()}["cairn-signal"])
            self.assertIn(f"Resources = {{ {signal} = {{", text)
            for group in tree.of_type("aws_autoscaling_group").values():
                (hook,) = group["initial_lifecycle_hook"]
                self.assertEqual((text_of(hook["name"]), text_of(hook["default_result"])), ("boot", "ABANDON"))
                self.assertIn(f"CAIRN_GROUP='{text_of(group['name'])}'", text)

    def test_snapshots_and_alarms(self):
        for name, _, tree in self.files():
            policies = list(tree.of_type("aws_dlm_lifecycle_policy").values())
            self.assertEqual(len(policies), int(name not in ("instance-store", "cluster-4", "cluster-18")))
            for policy in policies:
                (details,) = policy["policy_details"]
                self.assertEqual([text_of(each) for each in details["resource_types"]], ["INSTANCE"])
                self.assertIs(details["parameters"][0]["exclude_boot_volume"], True)
            wanted = {"StatusCheckFailed"} if name.startswith("cluster") else ALARMS
            found = {text_of(each["metric_name"]) for each in tree.of_type("aws_cloudwatch_metric_alarm").values()}
            self.assertEqual(found, wanted)


class Tree:
    """Resources of a Terraform file."""

    def __init__(self, text):
        self.resources = []
        for block in hcl2.loads(text)["resource"]:
            ((kind, rest),) = ((key, value) for key, value in block.items() if not key.startswith("__"))
            ((name, body),) = ((key, value) for key, value in rest.items() if not key.startswith("__"))
            self.resources.append((text_of(kind), text_of(name), body))

    def of_type(self, kind):
        return {name: body for each, name, body in self.resources if each == kind}


def text_of(value):
    return str(value).strip('"')


def pattern(text, name):
    """The pattern of a variable, as a regular expression."""
    found = re.search(rf'can\(regex\("(.*)", var\.{name}\)\)', text)
    assert found, name
    return found[1].replace("\\\\", "\\")


def check_patterns(test, login, client):
    for value in EVERYONE:
        test.assertIsNone(re.search(login, value), value)
    for value in LOGINS:
        test.assertIsNotNone(re.search(login, value), value)
    test.assertIsNone(re.search(client, "0.0.0.0/0"))
    test.assertIsNotNone(re.search(client, "10.0.0.0/8"))
