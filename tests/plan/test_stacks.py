"""CloudFormation stacks, created, looked at and deleted with the AWS CLI, against a local stand-in for AWS."""

import tempfile

import yaml

from plan import kit

STORAGE_TYPES = {"Small-2TB": (500, "m6i.xlarge"), "Medium-5TB": (1250, "m6i.2xlarge"),
                 "Large-10TB": (2500, "m6i.4xlarge"), "XLarge-15TB": (3750, "m6i.8xlarge")}
DATA_VOLUMES = 6


class Stacks(kit.Test):
    def setUp(self):
        self.aws = self.enterContext(kit.aws())
        self.parameters = self.aws.network()

    def volumes(self, ids):
        return self.aws("ec2", "describe-volumes", "--volume-ids", *ids.split(","))["Volumes"]

    def test_every_storage_type_with_and_without_placement_and_spot(self):
        for index, (name, (gib, instance)) in enumerate(STORAGE_TYPES.items()):
            for more in ({}, {"PlacementGroup": "near", "SpotPrice": "0.25"}):
                with self.subTest(name, **more):
                    stack = f"server-{index}-{len(more)}"
                    template = kit.templates() / "published" / ("cairn.json" if more else "cairn.yaml")
                    parameters = {**self.parameters, "StorageType": name, "ClusterName": stack, **more}
                    outputs = self.aws.create(stack, template, parameters)
                    self.assertIn(f"{outputs['ServerAddress']}:/main", outputs["MountCommand"])
                    volumes = self.volumes(outputs["DataVolumes"])
                    # The stand-in takes no notice of type and encryption: test_tools looks at those.
                    self.assertEqual([volume["Size"] for volume in volumes], [gib] * DATA_VOLUMES)
                    self.check_server(stack, outputs, instance, more)
                    self.aws.delete(stack)

    def check_server(self, stack, outputs, instance, more):
        resources = self.aws.resources(stack)
        group = self.aws("autoscaling", "describe-auto-scaling-groups", "--auto-scaling-group-names",
                         outputs["ServerGroupName"])["AutoScalingGroups"][0]
        self.assertEqual((group["MinSize"], group["MaxSize"], group["DesiredCapacity"]), (1, 1, 1))
        versions = self.aws("ec2", "describe-launch-template-versions", "--launch-template-id", resources["ServerTemplate"])
        data = versions["LaunchTemplateVersions"][-1]["LaunchTemplateData"]
        self.assertEqual(data["InstanceType"], instance)
        self.assertEqual(data["MetadataOptions"]["HttpTokens"], "required")
        root = data["BlockDeviceMappings"][0]["Ebs"]
        self.assertEqual((root["VolumeSize"], root["Encrypted"]), (100, True))
        self.assertEqual(data.get("Placement", {}).get("GroupName"), more.get("PlacementGroup"))
        spot = data.get("InstanceMarketOptions", {}).get("SpotOptions", {}).get("MaxPrice")
        self.assertEqual(spot, more.get("SpotPrice"))
        config = yaml.safe_load(self.aws.user_data(resources["ServerTemplate"]))
        self.assertEqual(config["user"], "cairn-admin")
        settings = config["write_files"][0]["content"]
        self.assertIn(f"CAIRN_NAME='{stack}'\n", settings)
        self.assertIn(f"CAIRN_STACK='{stack}'\n", settings)
        self.assertIn(f"CAIRN_VOLUMES='{outputs['DataVolumes']}'\n", settings)
        self.assertIn("CAIRN_CLIENTS='10.0.0.0/16'\n", settings)
        self.assertIn("CAIRN_LOGIN='10.0.0.7/32'\n", settings)
        # What stands in the script is what is in the repository.
        folder = kit.harness.REPOSITORY / "crates/tools/plan/templates"
        script = (folder / "boot.sh").read_text() + (folder / "server.sh").read_text()
        self.assertEqual(config["write_files"][1]["content"], script)
        rules = self.aws("ec2", "describe-security-groups", "--group-ids", resources["ServerSecurityGroup"])
        permissions = rules["SecurityGroups"][0]["IpPermissions"]
        # The stand-in takes no notice of the ways out: test_security looks at those.
        self.assertIn(f"CAIRN_GROUP='{stack}-server'\n", settings)
        self.assertEqual(outputs["ServerGroupName"], f"{stack}-server")
        # Of a key in a template the stand-in can say no more: test_security looks at the rest.
        keys = [each["KeyArn"] for each in self.aws("kms", "list-keys")["Keys"]]
        self.assertIn(outputs["VolumeKey"], keys)
        self.assertEqual(root["KmsKeyId"], outputs["VolumeKey"])
        self.assertEqual(sorted({rule["FromPort"] for rule in permissions}), [22, 111, 2049])
        for rule in permissions:
            self.assertTrue(all(each["CidrIp"] == "10.0.0.7/32" for each in rule["IpRanges"]), rule)

    def test_an_update_without_a_new_image_keeps_the_template(self):
        template = kit.templates() / "published" / "cairn.yaml"
        self.aws.create("kept", template, self.parameters)
        resources = self.aws.resources("kept")
        # The public parameter of the newest image may change meanwhile: nothing here looks at it.
        self.assertNotIn("AWS::SSM::Parameter", template.read_text())
        words = [f"ParameterKey={key},UsePreviousValue=true" for key in self.parameters]
        self.aws("cloudformation", "update-stack", "--stack-name", "kept", "--template-body", f"file://{template}",
                 "--capabilities", "CAPABILITY_IAM", "--parameters", *words)
        versions = self.aws("ec2", "describe-launch-template-versions", "--launch-template-id", resources["ServerTemplate"])
        self.assertEqual(len(versions["LaunchTemplateVersions"]), 1)
        self.aws.delete("kept")

    def test_a_key_of_ones_own_is_taken(self):
        key = self.aws("kms", "create-key")["KeyMetadata"]["Arn"]
        template = kit.templates() / "published" / "cairn.yaml"
        outputs = self.aws.create("own-key", template, {**self.parameters, "KmsKey": key})
        self.assertEqual(outputs["VolumeKey"], key)
        self.assertNotIn("VolumeKey", self.aws.resources("own-key"))
        self.aws.delete("own-key")

    def test_volumes_of_an_earlier_stack_are_taken(self):
        template = kit.templates() / "published" / "cairn.yaml"
        ids = self.aws.create("first", template, self.parameters)["DataVolumes"]
        self.aws.delete("first")
        if not self.kept(ids):
            # The stand-in deletes what AWS retains; what the template says is checked in test_tools.
            ids = ",".join(
                self.aws("ec2", "create-volume", "--size", "500", "--availability-zone", f"{kit.REGION}a")["VolumeId"]
                for _ in range(DATA_VOLUMES)
            )
        outputs = self.aws.create("second", template, {**self.parameters, "ExistingVolumes": ids})
        self.assertEqual(outputs["DataVolumes"], ids)
        self.assertFalse([name for name in self.aws.resources("second") if name.startswith("DataVolume")])
        self.aws.delete("second")

    def kept(self, ids):
        known = {volume["VolumeId"] for volume in self.aws("ec2", "describe-volumes")["Volumes"]}
        return set(ids.split(",")) <= known

    def test_the_other_servers(self):
        for name in ["one-volume", "other-protection", "instance-store"]:
            with self.subTest(name):
                outputs = self.aws.create(name, kit.templates() / name / "cairn.yaml", {**self.parameters, "ClusterName": name})
                self.assertTrue(outputs["ServerAddress"])
                self.aws.delete(name)

    def test_a_cluster(self):
        parameters = {**self.parameters, "InternalNetwork": "10.0.250.0/24"}
        tree = yaml.safe_load((kit.templates() / "cluster-4" / "cairn.yaml").read_text())
        # The stand-in does not know the secondary addresses of an interface.
        del tree["Outputs"]["FloatingAddresses"]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as template:
            yaml.safe_dump(tree, template)
            template.flush()
            outputs = self.aws.create("cluster", template.name, parameters)
        self.assertEqual(len(outputs["NodeAddresses"].split(",")), 4)
        internal = outputs["InternalAddresses"].split(",")
        self.assertEqual(len(internal), 4)
        self.assertTrue(all(address.startswith("10.0.250.") for address in internal))
        resources = self.aws.resources("cluster")
        nodes = [name for name in resources if name.startswith("Node") and name[4:].isdigit()]
        self.assertEqual(len(nodes), 4)
        config = yaml.safe_load(self.aws.user_data(resources["NodeTemplate"]))
        self.assertIn(f"CAIRN_NODES='{outputs['InternalAddresses']}'\n", config["write_files"][0]["content"])
        group = self.aws("ec2", "describe-security-groups", "--group-ids", resources["InternalSecurityGroup"])["SecurityGroups"][0]
        pairs = [pair["GroupId"] for rule in group["IpPermissions"] for pair in rule["UserIdGroupPairs"]]
        self.assertEqual(pairs, [resources["InternalSecurityGroup"]])
        self.assertFalse([rule for rule in group["IpPermissions"] if rule["IpRanges"]])
        self.aws.delete("cluster")
