"""moto 5.2.5 as the back room of the local world's edge.

Started by `ostler-local` with the edge's port in MOTO_PORT and the world's clock in OSTLER_CLOCK. Serves on a port of
its own choice and prints it as the first line. Ends when its standard input does, that is with its parent.

Each function below mends one thing that moto does otherwise than AWS, or not at all, and says which.
"""

import datetime
import functools
import importlib
import json
import os
import pkgutil
import re
import sys
import threading
import time
import types
import urllib.request

EDGE = f"http://127.0.0.1:{os.environ['MOTO_PORT']}"
EPOCH, SCALE = (float(part) for part in os.environ["OSTLER_CLOCK"].split("@"))
PARSER = "moto.stepfunctions.parser."


def world_seconds():
    """World time, seconds since 1970: the formula of the local world's clock."""
    return EPOCH + (time.time() - EPOCH) * SCALE


class WorldDatetime(datetime.datetime):
    """A datetime whose present is the world's, written as AWS writes it: milliseconds and a Z."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(world_seconds(), tz)

    @classmethod
    def utcnow(cls):
        return cls.fromtimestamp(world_seconds(), datetime.timezone.utc).replace(tzinfo=None)

    def isoformat(self, *_, **__):
        return self.strftime("%Y-%m-%dT%H:%M:%S.") + f"{self.microsecond // 1000:03d}Z"


def world_datetime_module():
    """Stands for `datetime` in a module that says `datetime.datetime.now()`."""
    names = {name: getattr(datetime, name) for name in dir(datetime) if not name.startswith("__")}
    return types.SimpleNamespace(**{**names, "datetime": WorldDatetime})


def call_edge(path, body, caller="moto"):
    scope = f"{caller}/20260101/us-east-1/lambda/aws4_request"
    request = urllib.request.Request(
        EDGE + path,
        data=body.encode(),
        method="POST",
        headers={
            "Content-Type": "application/json",
            "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0",
        },
    )
    with urllib.request.urlopen(request, timeout=900) as answer:
        return answer.read().decode(), {name.lower() for name in answer.headers}


def step_functions_run_in_world_time():
    """Executions' dates, Wait states and Retry delays are world time; task time-outs stay real, as functions' do."""
    for name in (
        "models",
        "backend.execution",
        "backend.state_machine",
        "asl.component.state.state",
        "asl.component.state.wait.wait_function.timestamp",
        "asl.component.state.exec.state_map.iteration.itemprocessor.map_run_record",
        "asl.eval.event.event_manager",
    ):
        importlib.import_module(PARSER + name).datetime = world_datetime_module()

    def pause(env, seconds):
        # Woken by StopExecution: AWS ends an execution at once, in a Retry's delay too (stock moto: after it).
        end = time.monotonic() + float(seconds) / SCALE
        while env.is_running() and (left := end - time.monotonic()) > 0:
            env.program_state_event.wait(left)

    waits = importlib.import_module(PARSER + "asl.component.state.wait.wait_function.wait_function")
    waits.WaitFunction._wait_interval = lambda self, env, wait_seconds: pause(env, wait_seconds)

    retries = importlib.import_module(PARSER + "asl.component.common.retry.retrier_decl")
    current = threading.local()
    evaluate = retries.RetrierDecl._eval_body

    def evaluate_retrier(self, env):
        current.env = env
        evaluate(self, env)

    retries.RetrierDecl._eval_body = evaluate_retrier
    retries.time = types.SimpleNamespace(sleep=lambda seconds: pause(current.env, seconds))


def executions_behave_as_on_aws():
    """Start times are text in `$$`; a name starts once under concurrency; StopExecution acts at once, with its error
    and cause; deleting a machine ends its executions; the edge hears of every end (AWS sends an EventBridge event)."""
    execution = importlib.import_module(PARSER + "backend.execution")
    models = importlib.import_module(PARSER + "models")
    responses = importlib.import_module("moto.stepfunctions.responses")

    start_details = execution.Execution.get_start_execution_details

    def start_execution_details(self):
        details = start_details(self)
        details.start_time = WorldDatetime.isoformat(details.start_time)
        return details

    execution.Execution.get_start_execution_details = start_execution_details

    # Looking up the name and recording the execution are two steps in moto: two threads could both start it.
    start, one_at_a_time = models.StepFunctionsParserBackend.start_execution, threading.Lock()

    def start_execution(self, *args, **kwargs):
        with one_at_a_time:
            return start(self, *args, **kwargs)

    models.StepFunctionsParserBackend.start_execution = start_execution

    def tell(ended):
        succeeded = ended.exec_status.value == "SUCCEEDED"
        event = {
            "executionArn": ended.exec_arn,
            "stateMachineArn": ended.state_machine.arn,
            "name": ended.name,
            "status": ended.exec_status.value,
            "startDate": int(ended.start_date.timestamp() * 1000),
            "stopDate": int(ended.stop_date.timestamp() * 1000),
            "input": ended.execution_input,
            "output": json.dumps(ended.output, separators=(",", ":")) if succeeded else None,
            "error": ended.error,
            "cause": ended.cause,
        }
        try:
            call_edge("/_edge/execution-ended", json.dumps(event))
        except Exception as error:
            print(f"execution-ended of {ended.name} was not taken by the edge: {error}", file=sys.stderr)

    reflect = execution.BaseExecutionWorkerCommunication._reflect_execution_status

    def reflect_once(self):
        if self.execution.stop_date is None:
            reflect(self)
            tell(self.execution)

    execution.BaseExecutionWorkerCommunication._reflect_execution_status = reflect_once

    def abort(running, error=None, cause=None):
        if running.stop_date is not None:
            return False
        running.stop_date = WorldDatetime.now(datetime.timezone.utc)
        running.exec_status = execution.ExecutionStatus.ABORTED
        running.error, running.cause = error or None, cause or None
        if running.exec_worker and getattr(running.exec_worker, "env", None):
            running.exec_worker.stop(stop_date=running.stop_date, error=error, cause=cause)
        return True

    def stop(self, stop_date, error=None, cause=None):
        if abort(self, error, cause):
            threading.Thread(target=tell, args=(self,), daemon=True).start()

    execution.Execution.stop = stop

    # Executions of a deleted machine end at their next transition (stock moto: never). Nobody is told: the rules on
    # them are deleted with their stack, before it.
    delete = models.StepFunctionsParserBackend.delete_state_machine

    def delete_state_machine(self, arn):
        deleted = [machine for machine in self.state_machines if machine.arn == arn]
        delete(self, arn)
        for running in [running for machine in deleted for running in machine.executions]:
            abort(running)

    models.StepFunctionsParserBackend.delete_state_machine = delete_state_machine

    def stop_execution(self):
        found = self.stepfunction_backend.describe_execution(self._get_param("executionArn"))
        found.stop(None, error=self._get_param("error"), cause=self._get_param("cause"))
        return responses.ActionResult({"stopDate": found.stop_date})

    responses.StepFunctionResponse.stop_execution = stop_execution


def step_functions_are_quick():
    """Stock moto parses the definition at each start (0.1 s) and makes a boto client for each task; matches a host
    against every service's patterns at each request; and reads an API's model in every thread of a first burst."""
    parser = importlib.import_module(PARSER + "asl.parse.asl_parser").AmazonStateLanguageParser
    parser.parse = staticmethod(functools.lru_cache(64)(parser.parse))
    paths = importlib.import_module(PARSER + "asl.utils.json_path")
    paths.parse = functools.lru_cache(4096)(paths.parse)

    import boto3
    from botocore.config import Config

    lock, clients = threading.Lock(), {}

    def client(region, service, state_credentials=None):
        with lock:
            if (region, service) not in clients:
                clients[region, service] = boto3.client(
                    service,
                    region_name=region,
                    endpoint_url=EDGE,
                    aws_access_key_id="stepfunctions",
                    aws_secret_access_key="local",
                    config=Config(
                        parameter_validation=False,
                        retries={"total_max_attempts": 1},
                        max_pool_connections=256,
                        connect_timeout=900,
                        read_timeout=900,
                    ),
                )
            return clients[region, service]

    tasks = importlib.import_module(PARSER + "asl.component.state.exec.state_task")
    for found in pkgutil.walk_packages(tasks.__path__, tasks.__name__ + "."):
        module = importlib.import_module(found.name)
        if hasattr(module, "boto_client_for"):
            module.boto_client_for = client

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication as Dispatcher

    backend, by_host = Dispatcher.get_backend_for_host, {}

    def backend_for_host(self, host):
        if host not in by_host:
            by_host[host] = backend(self, host)
        return by_host[host]

    Dispatcher.get_backend_for_host = backend_for_host

    import moto.core.utils as utils

    utils.create_loader = functools.lru_cache(1)(utils.create_loader)
    load, loading = functools.cache(utils._load_service_model), threading.Lock()

    def load_service_model(service_name, model_name):
        with loading:
            return load(service_name, model_name)

    utils._load_service_model = load_service_model

    def warm_up():
        client("us-east-1", "lambda")
        for name in ("stepfunctions", "dynamodb", "ssm", "logs", "sqs", "lambda", "cloudformation", "iam", "s3", "ec2"):
            utils.get_service_model(name)

    step_functions_are_quick.warm_up = warm_up


def state_machines_come_from_templates():
    """CloudFormation's state machines go to the interpreting backend, with Definition, DefinitionS3Location and
    DefinitionSubstitutions (stock: the static backend, DefinitionString only)."""
    import moto.stepfunctions.models as models
    from moto.core.config import default_user_config
    from moto.stepfunctions.parser.models import stepfunctions_parser_backends

    default_user_config["stepfunctions"] = {"execute_state_machine": True}
    models.stepfunctions_backends = stepfunctions_parser_backends

    def settle(properties, account):
        definition = properties.get("DefinitionString")
        if not definition and "Definition" in properties:
            definition = json.dumps(properties["Definition"])
        if not definition and (place := properties.get("DefinitionS3Location")):
            from moto.s3.models import s3_backends

            definition = s3_backends[account]["aws"].get_object(place["Bucket"], place["Key"]).value.decode()
        values = properties.get("DefinitionSubstitutions") or {}
        properties["DefinitionString"] = re.sub(
            r"\$\{(\w+)\}", lambda found: str(values.get(found[1], found[0])), definition or ""
        )

    machine = models.StateMachine
    create, update = machine.create_from_cloudformation_json, machine.update_from_cloudformation_json

    def create_machine(cls, resource_name, cloudformation_json, account_id, region_name, **kwargs):
        settle(cloudformation_json["Properties"], account_id)
        return create.__func__(cls, resource_name, cloudformation_json, account_id, region_name, **kwargs)

    def update_machine(cls, original_resource, new_resource_name, cloudformation_json, account_id, region_name):
        settle(cloudformation_json["Properties"], account_id)
        return update.__func__(
            cls, original_resource, new_resource_name, cloudformation_json, account_id, region_name
        )

    machine.create_from_cloudformation_json = classmethod(create_machine)
    machine.update_from_cloudformation_json = classmethod(update_machine)


def stacks_are_whole():
    """Stacks made by a change set have Outputs and Exports; types that moto skips in silence are recorded, so that Ref,
    GetAtt and DescribeStackResources answer (the edge makes their effects)."""
    import moto.cloudformation.models as models
    from moto.core.common_models import CloudFormationModel

    execute = models.CloudFormationBackend.execute_change_set

    def execute_change_set(self, change_set_name, stack_name=None):
        for stack in self.stacks.values():
            stack.resource_map.cross_stack_resources = self.exports
        execute(self, change_set_name, stack_name)
        for stack in self.stacks.values():
            if stack.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
                stack._parse_template()
                stack.output_map = stack._create_output_map()
                for export in stack.exports:
                    self.exports[export.name] = export

    models.CloudFormationBackend.execute_change_set = execute_change_set

    def recorded(kind):
        class Recorded(CloudFormationModel):
            __module__ = "moto.cloudformation.recorded"  # moto keeps instances by the service named here

            def __init__(self, name, properties, account, region):
                function = str(properties.get("TargetFunctionArn", ""))
                self.resource_id = name if kind != "AWS::Lambda::Url" else function
                self.attributes = {
                    "Arn": f"arn:aws:{kind.split('::')[1].lower()}:{region}:{account}:{name}",
                    "FunctionArn": function,
                    "FunctionUrl": f"{EDGE}/_url/{function.split(':')[-1]}/",
                }

            @property
            def physical_resource_id(self):
                return self.resource_id

            @staticmethod
            def cloudformation_name_type():
                return {"AWS::CloudWatch::Alarm": "AlarmName", "AWS::Scheduler::Schedule": "Name"}.get(kind, "")

            @staticmethod
            def cloudformation_type():
                return kind

            @classmethod
            def has_cfn_attr(cls, attr):
                return attr in ("Arn", "FunctionArn", "FunctionUrl")

            def get_cfn_attribute(self, attribute_name):
                return self.attributes[attribute_name]

            @classmethod
            def create_from_cloudformation_json(cls, resource_name, cloudformation_json, account_id, region_name, **_):
                return cls(resource_name, cloudformation_json.get("Properties", {}), account_id, region_name)

            @classmethod
            def update_from_cloudformation_json(
                cls, original_resource, new_resource_name, cloudformation_json, account_id, region_name
            ):
                properties = cloudformation_json.get("Properties", {})
                return cls(original_resource.resource_id, properties, account_id, region_name)

            @classmethod
            def delete_from_cloudformation_json(cls, *_, **__):
                pass

            def delete(self, *_):
                pass

        return Recorded

    # Kept alive by this list: CloudFormation finds its models among CloudFormationModel's subclasses.
    stacks_are_whole.models = [
        recorded(kind)
        for kind in (
            "AWS::Lambda::Url",
            "AWS::Lambda::EventInvokeConfig",
            "AWS::Logs::SubscriptionFilter",
            "AWS::CloudWatch::Alarm",
            "AWS::SQS::QueuePolicy",
            "AWS::Scheduler::Schedule",
            "AWS::KinesisFirehose::DeliveryStream",
            "AWS::Logs::Destination",
            "AWS::Logs::LogStream",
        )
    ]


def conditions_hold_in_updates():
    """A resource whose condition does not hold is not there to be changed; moto changes it all the same, and fails."""
    import moto.cloudformation.parsing as parsing

    change, update = parsing.parse_and_update_resource, parsing.ResourceMap.update

    def change_what_is_there(logical_id, resource_json, resources_map, *args, **kwargs):
        if resources_map[logical_id] is None:
            return None
        return change(logical_id, resource_json, resources_map, *args, **kwargs)

    def update_and_forget(self, *args, **kwargs):
        update(self, *args, **kwargs)
        # `AWS::NoValue` is kept as None, and stays.
        self._parsed_resources = {
            name: it for name, it in self._parsed_resources.items() if it is not None or name.startswith("AWS::")
        }

    parsing.parse_and_update_resource = change_what_is_there
    parsing.ResourceMap.update = update_and_forget


def lists_leave_no_value_out():
    """`AWS::NoValue` in a list is no element; moto puts null there."""
    import moto.cloudformation.parsing as parsing

    clean = parsing.clean_json

    def clean_json(resource_json, resources_map):
        cleaned = clean(resource_json, resources_map)
        return [value for value in cleaned if value is not None] if isinstance(resource_json, list) else cleaned

    parsing.clean_json = clean_json


def log_groups_can_be_changed():
    """moto's log groups know no update: the stack would fail at the next GetAtt."""
    from moto.logs.models import LogGroup

    def update(cls, original_resource, new_resource_name, cloudformation_json, account_id, region_name):
        original_resource.retention_in_days = cloudformation_json.get("Properties", {}).get("RetentionInDays")
        return original_resource

    LogGroup.update_from_cloudformation_json = classmethod(update)


def buses_have_names():
    """`Ref` of an event bus is its name (CloudFormation template reference, AWS::Events::EventBus); moto's has none."""
    from moto.events.models import EventBus

    EventBus.physical_resource_id = property(lambda self: self.name)


def logs_take_lines_of_world_time():
    """Lines from more than two hours ahead are thrown away: ahead of the world's clock (stock: of real time, which the world
    leaves behind)."""
    import moto.logs.models as models

    models.utcnow = WorldDatetime.utcnow


def role_policies_are_texts():
    """GetRolePolicy answers JSON for policies of a template too (stock: Python's own notation of it)."""
    from moto.iam.models import Role

    put = Role.put_policy

    def put_policy(self, policy_name, policy_json):
        put(self, policy_name, policy_json if isinstance(policy_json, str) else json.dumps(policy_json))

    Role.put_policy = put_policy


def triggers_are_the_edges():
    """The edge owns queues and runs event sources; what moto still triggers (streams, topics) it invokes there."""
    import moto.awslambda.models as functions
    import moto.sqs.models as queues

    def invoke(self, event=None):
        body = event if isinstance(event, str) else json.dumps(event or {})
        path = f"/2015-03-31/functions/{self.function_name}/invocations"
        payload, headers = call_edge(path, body, "moto-trigger")
        return payload, "x-amz-function-error" in headers, ""

    functions.LambdaFunction._invoke_lambda = invoke

    class Recorded(dict):
        """Mappings are listed, never run: moto would invoke one record at a time inside SendMessage."""

        def items(self):
            return ()

    make = queues.Queue.__init__

    def make_queue(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.lambda_event_source_mappings = Recorded(self.lambda_event_source_mappings)

    queues.Queue.__init__ = make_queue


def code_can_be_read():
    """GET /moto-api/function-code/<name>: the deployment zip (GetFunction gives an address that can't be fetched)."""
    from moto.awslambda.models import lambda_backends
    from moto.moto_api._internal import urls

    def function_code(request, full_url, headers):
        name = full_url.split("?")[0].rstrip("/").rsplit("/", 1)[1]
        for account in lambda_backends.values():
            for backend in account.values():
                for function in backend.list_functions():
                    if function.function_name == name:
                        return 200, {"Content-Type": "application/zip"}, function.code_bytes
        return 404, {}, f"no function {name}"

    urls.url_paths["{0}/moto-api/function-code/(?P<name>[^/]+)$"] = function_code


def end_with_parent():
    while os.read(0, 4096):
        pass
    os._exit(0)


def main():
    threading.Thread(target=end_with_parent, daemon=True).start()
    step_functions_run_in_world_time()
    executions_behave_as_on_aws()
    step_functions_are_quick()
    state_machines_come_from_templates()
    stacks_are_whole()
    conditions_hold_in_updates()
    lists_leave_no_value_out()
    log_groups_can_be_changed()
    buses_have_names()
    logs_take_lines_of_world_time()
    role_policies_are_texts()
    triggers_are_the_edges()
    code_can_be_read()

    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
    print(server.server_port, flush=True)
    threading.Thread(target=step_functions_are_quick.warm_up, daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
